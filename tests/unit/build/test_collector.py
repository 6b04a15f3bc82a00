"""The collector on trees, with the programs that it calls stood in for."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from golden.pins import pin, recipe
from provision.build.collector import CollectError, collect, main, parse_modinfo, parse_soname
from provision.build.dockerfile import build_plan
from provision.documents import parse_json
from provision.manifest import Manifest
from unit.recipes import variant

KERNEL = "6.1.0-56-amd64"
MODINFO = "filename:\t/x.ko\0license=GPL\0depends=drm,nvidia-modeset\0name=toy\0vermagic={} SMP \0"
READELF = " 0x0e (SONAME)             Library soname: [{}]\n"


class Tools:
    """Stands in for strip, modinfo, readelf and depmod, and keeps what it was asked for."""

    def __init__(self, *aliases: str, kernel: str = KERNEL) -> None:
        self.calls: list[list[str]] = []
        self.kernel = kernel
        self.aliases = "".join(f"alias={alias}\0" for alias in aliases)

    def __call__(self, arguments: Sequence[str]) -> str:
        self.calls.append(list(arguments))
        match arguments[0]:
            case "strip":
                shutil.copyfile(arguments[-1], arguments[-2])
            case "modinfo":
                return MODINFO.format(self.kernel) + self.aliases
            case "readelf":
                name = Path(arguments[-1]).name
                return READELF.format(f"{name.split('.so')[0]}.so.1")
            case "depmod":
                # As builds of kmod do that look nowhere else.
                folder = Path(arguments[2]) / "usr/lib/modules" / arguments[3]
                (folder / "modules.dep").write_text("toy.ko:\n")
        return ""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tree = tmp_path / "source"
    for name, content in {
        "tree/toy.ko": b"\x7fELF module",
        "usr/lib/libtoy.so.2.0": b"\x7fELF\2library",
        "usr/lib/plain.so": b"no elf",
        "usr/bin/toy": b"#!/bin/sh\n",
        "usr/lib/firmware/toy/a.bin": b"a",
        "usr/lib/firmware/toy/b.bin": b"b",
    }.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tree / "usr/bin/toy").chmod(0o4755)
    (tree / "usr/lib/libtoy.so").symlink_to("libtoy.so.2.0")
    (tree / "usr/lib/outside.so").symlink_to("/etc/hostname")
    return tree


def plan(*files: dict[str, Any], modules: Sequence[str] = ("toy.ko",)) -> dict[str, Any]:
    return {
        "pin": {},
        "pin_digest": "sha256:0",
        "kernel": KERNEL,
        "licences": ["GPL-2.0-only"],
        "directory": "tree",
        "modules": list(modules),
        "files": list(files),
        "container": {},
        "host": {},
        "cards": ["supported.json", "usr/share/supported.json.gz"],
    }


def rule(kind: str, source: str, to: str, *links: str) -> dict[str, Any]:
    return {"kind": kind, "from": source, "to": to, "links": list(links), "features": ["f"]}


def test_a_root_for_other_systems_has_relative_links_to_all_libraries(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    library = rule("library", "usr/lib/libtoy.so.2.0", "/usr/lib64/toy/", "libtoy.so")
    root = {"root": {"path": "/run/toy", "libraries": "/usr/lib64"}}
    manifest = collect({**plan(library), "host": root}, source, out, Tools())
    links = {f["path"]: f for f in manifest["files"] if f["path"].startswith("/usr/lib64/lib")}
    assert set(links) == {f"/usr/lib64/{n}" for n in ("libtoy.so", "libtoy.so.1", "libtoy.so.2.0")}
    for path, entry in links.items():
        assert (entry["kind"], entry["features"]) == ("miscellaneous", [])
        assert (out / "driver" / path[1:]).readlink() == Path(entry["link"])
        assert (out / "driver" / path[1:]).resolve().read_bytes() == b"\x7fELF\2library"


def test_modules_are_stripped_described_and_indexed(source: Path, tmp_path: Path) -> None:
    tools = Tools()
    out = tmp_path / "out"
    manifest = collect(plan(), source, out, tools)
    path = f"lib/modules/{KERNEL}/toy.ko"
    assert manifest["modules"] == [
        {
            "name": "toy",
            "path": path,
            "sha256": hashlib.sha256(b"\x7fELF module").hexdigest(),
            "size": 11,
            "vermagic": f"{KERNEL} SMP",
            "version": None,
            "licence": "GPL",
            "depends": ["drm", "nvidia_modeset"],
        }
    ]
    assert tools.calls[0][:2] == ["strip", "--strip-debug"]
    assert tools.calls[-1] == ["depmod", "-b", str(out), KERNEL]
    # What depmod was given to read in place of the kernel's lists is gone again.
    names = {entry.name for entry in (out / f"lib/modules/{KERNEL}").iterdir()}
    assert names == {"toy.ko", "modules.dep"}
    assert not (out / "usr").exists()


def test_library_gets_its_soname_and_links(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    library = rule("library", "usr/lib/libtoy.so.2.0", "/usr/lib64/t/libtoy.so.2.0", "libtoy.so")
    files = collect(plan(library), source, out, Tools())["files"]
    assert [(file["path"], file["link"], file["soname"]) for file in files] == [
        ("/usr/lib64/t/libtoy.so", "libtoy.so.2.0", None),
        ("/usr/lib64/t/libtoy.so.1", "libtoy.so.2.0", None),
        ("/usr/lib64/t/libtoy.so.2.0", None, "libtoy.so.1"),
    ]
    assert (out / "driver/usr/lib64/t/libtoy.so.1").resolve().read_bytes() == b"\x7fELF\2library"


@pytest.mark.parametrize(("kind", "elf_class"), [(b"\1", 32), (b"\2", 64), (b" ", None)])
def test_a_librarys_class_is_read(
    source: Path, tmp_path: Path, kind: bytes, elf_class: int | None
) -> None:
    (source / "usr/lib/libtoy.so.2.0").write_bytes(b"\x7fELF" + kind)
    library = rule("library", "usr/lib/libtoy.so.2.0", "/usr/lib64/t/libtoy.so.2.0")
    files = collect(plan(library), source, tmp_path / "out", Tools())["files"]
    assert {file["path"]: file["elf_class"] for file in files if file["link"] is None} == {
        "/usr/lib64/t/libtoy.so.2.0": elf_class
    }


def test_source_may_be_a_link_whose_target_names_the_file(source: Path, tmp_path: Path) -> None:
    files = collect(
        plan(rule("library", "usr/lib/libtoy.so", "/usr/lib64/")), source, tmp_path / "out", Tools()
    )["files"]
    assert files[-1]["path"] == "/usr/lib64/libtoy.so.2.0"


def test_file_that_is_no_elf_has_no_soname(source: Path, tmp_path: Path) -> None:
    [file] = collect(
        plan(rule("library", "usr/lib/plain.so", "/l/plain.so")), source, tmp_path / "out", Tools()
    )["files"]
    assert file["soname"] is None


@pytest.mark.parametrize(("before", "after"), [(0o640, "0644"), (0o750, "0755")])
def test_library_stays_executable_if_it_was(
    source: Path, tmp_path: Path, before: int, after: str
) -> None:
    (source / "usr/lib/plain.so").chmod(before)
    [file] = collect(
        plan(rule("library", "usr/lib/plain.so", "/l/plain.so")), source, tmp_path / "out", Tools()
    )["files"]
    assert file["mode"] == after


def test_binary_is_executable_and_loses_its_set_id_bits(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    [file] = collect(plan(rule("binary", "usr/bin/toy", "/usr/bin/toy")), source, out, Tools())[
        "files"
    ]
    assert file["mode"] == "0755"
    assert (out / "driver/usr/bin/toy").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("pattern", ["lib/firmware/toy/*.bin", "usr/lib/firmware/toy/*.bin"])
def test_glob_finds_files_under_either_root(source: Path, tmp_path: Path, pattern: str) -> None:
    files = collect(
        plan(rule("firmware", pattern, "/lib/firmware/toy/")), source, tmp_path / "out", Tools()
    )["files"]
    assert [file["path"] for file in files] == [
        "/lib/firmware/toy/a.bin",
        "/lib/firmware/toy/b.bin",
    ]


def test_modules_may_be_globs(source: Path, tmp_path: Path) -> None:
    found = collect(plan(modules=("*.ko",)), source, tmp_path / "out", Tools())
    assert [module["name"] for module in found["modules"]] == ["toy"]
    with pytest.raises(CollectError):
        collect(plan(modules=("none/*.ko",)), source, tmp_path / "other", Tools())


def test_all_problems_are_reported_together(source: Path, tmp_path: Path) -> None:
    wanted = plan(
        rule("binary", "usr/bin/none", "/usr/bin/none"),
        rule("library", "usr/lib/outside.so", "/l/outside.so"),
        rule("firmware", "lib/firmware/toy/*.bin", "/one"),
        modules=("toy.ko", "other.ko"),
    )
    tools = Tools(kernel="5.0")
    with pytest.raises(CollectError) as caught:
        collect(wanted, source, tmp_path / "out", tools)
    assert caught.value.problems == (
        "the build did not make the module other.ko",
        f"toy.ko is built for '5.0 SMP', not for {KERNEL}",
        "there is no file usr/bin/none (binary)",
        "there is no file usr/lib/outside.so (library)",
        "two different files want to be /one",
    )
    assert not any(call[0] == "depmod" for call in tools.calls)


@pytest.mark.parametrize(
    "mistaken",
    [
        rule("binary", "/usr/bin/toy", "/usr/bin/toy"),
        rule("binary", "../x", "/usr/bin/toy"),
        rule("binary", "usr/bin/toy", "usr/bin/toy"),
        rule("binary", "usr/bin/toy", "/../toy"),
        rule("binary", "usr/bin/toy", "/toy", "../x"),
        rule("binary", "usr/bin/toy", "/toy", ".."),
    ],
)
def test_nothing_is_placed_outside(source: Path, tmp_path: Path, mistaken: dict[str, Any]) -> None:
    with pytest.raises(CollectError):
        collect(plan(mistaken), source, tmp_path / "out", Tools())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_one_file_may_serve_two_rules(source: Path, tmp_path: Path) -> None:
    same = rule("binary", "usr/bin/toy", "/usr/bin/toy")
    assert len(collect(plan(same, same), source, tmp_path / "out", Tools())["files"]) == 1


def test_user_space_that_is_a_layer_is_described_with_the_features_that_there_are(
    source: Path, tmp_path: Path
) -> None:
    listed = {"path": "/usr/bin/smi", "features": ["f", "graphics"], "sha256": "0" * 64}
    wanted = plan() | {"container": {"features": {"f": {}}}, "userspace": [listed]}
    made = collect(wanted, source, tmp_path / "out", Tools())
    assert made["files"] == [{**listed, "features": ["f"]}]


def test_a_file_of_the_layer_is_not_placed_a_second_time(source: Path, tmp_path: Path) -> None:
    listed = {"path": "/usr/bin/toy", "features": []}
    same = plan(rule("binary", "usr/bin/toy", "/usr/bin/toy")) | {"userspace": [listed]}
    with pytest.raises(CollectError):
        collect(same, source, tmp_path / "out", Tools())


def test_manifest_is_what_the_model_wants(source: Path, tmp_path: Path) -> None:
    recipe_ = recipe("v4l2loopback")
    pinned = pin("v4l2loopback", "0.12.7", "dkms")
    wanted = json.loads(build_plan(pinned, recipe_, variant(recipe_)))
    built = source / wanted["directory"] / "dkms-modules"
    built.mkdir()
    (built / "v4l2loopback.ko").write_bytes(b"\x7fELF")
    (source / "usr/bin/v4l2loopback-ctl").write_bytes(b"#!/bin/sh\n")
    copyright_ = source / "usr/share/doc/v4l2loopback-dkms/copyright"
    copyright_.parent.mkdir(parents=True)
    copyright_.write_text("GPL")
    made = collect(wanted, source, tmp_path / "out", Tools())
    manifest = parse_json(json.dumps(made), Manifest, name="manifest.json")
    assert manifest.pin == pinned
    assert manifest.container == recipe_.container


def test_parse_modinfo_takes_the_first_of_each_field() -> None:
    output = "filename:\t/a=b.ko\0version=1=2\0alias=pci:a\0alias=pci:b\0"
    assert parse_modinfo(output) == {"filename:\t/a": "b.ko", "version": "1=2", "alias": "pci:a"}


# As drivers of NVIDIA's have them: 550 and 590, shortened.
_CHIPS: list[dict[str, Any]] = [
    {"devid": "0x1004", "name": "GTX 780", "legacybranch": "470.xx", "features": []},
    {"devid": "0x1C81", "name": "GTX 1050", "features": ["hdmi4k"]},
    {"devid": "0x2204", "name": "RTX 3090", "features": ["kernelopen"]},
]
_NEWER = [
    {"devid": "0x1C81", "name": "GTX 1050", "legacybranch": "580.xx", "features": []},
    {"devid": "0x2204", "subdevid": "0x1", "features": ["kernelopen", "gsp_proprietary_supported"]},
    {"devid": "0x2204", "subdevid": "0x2", "features": ["kernelopen", "gsp_proprietary_supported"]},
    {"devid": "0x2B85", "name": "RTX 5090", "features": ["kernelopen"]},
]


@pytest.mark.parametrize(
    ("chips", "flavour", "devices"),
    [
        (_CHIPS, "open", ["2204"]),
        # It says of no card that the proprietary modules leave it to the open ones.
        (_CHIPS, "proprietary", ["1c81", "2204"]),
        (_NEWER, "open", ["2204", "2b85"]),
        (_NEWER, "proprietary", ["2204"]),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_which_cards_it_drives_is_on_the_drivers_own_list(
    source: Path,
    tmp_path: Path,
    chips: list[dict[str, Any]],
    flavour: str,
    devices: list[str],
    *,
    is_packed: bool,
) -> None:
    text = json.dumps({"chips": chips}).encode()
    (source / "usr/share").mkdir()
    name = "usr/share/supported.json.gz" if is_packed else "supported.json"
    (source / name).write_bytes(gzip.compress(text) if is_packed else text)
    wanted = {**plan(), "pin": {"driver": {"flavour": flavour}}}
    made = collect(wanted, source, tmp_path / "out", Tools("pci:v000010DEd*sv*sd*bc03sc00i00*"))
    assert made["cards"] == [{"vendor": "10de", "devices": devices, "classes": []}]


_OF_TWO = [{"vendor": "1e60", "devices": ["2864", "45c4"], "classes": []}]


@pytest.mark.parametrize(
    ("aliases", "cards"),
    [
        (["pci:v00001E60d000045C4sv*sd*bc*sc*i*", "pci:v00001E60d00002864sv*sd*bc*sc*i*"], _OF_TWO),
        (["pci:v000010DEd*sv*sd*bc03sc02i00*"], [{"vendor": "10de", "classes": ["0302"]}]),
        (["pci:v000010DEd*sv*sd*bc03sc*i*"], [{"vendor": "10de", "classes": ["03"]}]),
        (["usb:v1D6Bp0104d*dc*", "char-major-195-*"], []),
        # For what any vendor makes, it says nothing.
        (["pci:v*d*sv*sd*bc01sc08i02*", "pci:v000010DEd*sv*sd*bc03sc02i00*"], []),
    ],
)
def test_which_cards_it_drives_is_said_by_the_aliases_of_its_modules(
    source: Path, tmp_path: Path, aliases: list[str], cards: list[dict[str, Any]]
) -> None:
    # A list that can't be read is no reason to have no driver.
    (source / "supported.json").write_text('{"chips": [{"devid": 1}]}')
    made = collect(plan(), source, tmp_path / "out", Tools(*aliases))
    assert made["cards"] == [{"devices": [], "classes": [], **one} for one in cards]


@pytest.mark.parametrize(
    ("output", "soname"),
    [
        (" 0x0000000e (SONAME)   Library soname: [libcuda.so.1]\n", "libcuda.so.1"),
        (" 0x00000001 (NEEDED)   Shared library: [libc.so.6]\n", None),
        ("", None),
    ],
)
def test_parse_soname(output: str, soname: str | None) -> None:
    assert parse_soname(output) == soname


@pytest.mark.parametrize("has_userspace", [True, False])
def test_user_space_has_the_same_bytes_for_every_kernel(
    source: Path, tmp_path: Path, *, has_userspace: bool
) -> None:
    layers = []
    for kernel in (KERNEL, "6.1.0-60-amd64"):
        rules = [rule("library", "usr/lib/libtoy.so.2.0", "/usr/lib64/")] if has_userspace else []
        folder = tmp_path / kernel
        folder.mkdir()
        (folder / "build.json").write_text(json.dumps({**plan(*rules), "kernel": kernel}))
        out, userspace = folder / "modules/opt", folder / "userspace/opt"
        words = [str(path) for path in (folder / "build.json", source, out, userspace)]
        main(words, Tools(kernel=kernel))
        manifest = json.loads((out / "driver/manifest.json").read_text())
        assert [file["path"] for file in manifest["files"]] == (
            ["/usr/lib64/libtoy.so.1", "/usr/lib64/libtoy.so.2.0"] if has_userspace else []
        )
        assert [path.name for path in (out / "driver").iterdir()] == ["manifest.json"]
        paths = [path for top in (out, userspace) for path in (top.parent, *top.parent.rglob("*"))]
        assert {path.lstat().st_mtime for path in paths} == {0}
        layers.append(_tar(userspace.parent))
    assert layers[0] == layers[1]
    with tarfile.open(fileobj=io.BytesIO(layers[0])) as archive:
        # Never an empty layer.
        assert "./opt" in archive.getnames()
        assert ("./opt/driver/usr/lib64/libtoy.so.2.0" in archive.getnames()) is has_userspace


def _tar(folder: Path) -> bytes:
    """A folder as a layer has it: with modes and times, and links as links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()
