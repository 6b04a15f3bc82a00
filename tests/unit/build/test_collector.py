"""The collector on trees, with the programs that it calls stood in for; what it is given."""

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
from provision.build.collector import CollectError, collect, main
from provision.build.dockerfile import build_plan, placeholders
from provision.catalogue.fields import PLACEHOLDERS
from provision.documents import parse_json
from provision.manifest import Manifest
from unit.recipes import variant

KERNEL = "6.1.0-56-amd64"
# The first of each field counts.
MODINFO = (
    "filename:\t/a=b.ko\0license=GPL\0depends=drm,nvidia-modeset\0name=toy\0vermagic={} SMP \0"
    "version=1=2\0license=none\0"
)
READELF = (
    " 0x01 (NEEDED)             Shared library: [libc.so.6]\n"
    " 0x0e (SONAME)             Library soname: [{}]\n"
)


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
        "usr/lib/old.so.1": b"\x7fELF\1library",
        "usr/lib/odd.so.1": b"\x7fELF library",
        "usr/bin/toy": b"#!/bin/sh\n",
        "usr/lib/firmware/toy/a.bin": b"a",
        "usr/lib/firmware/toy/b.bin": b"b",
    }.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tree / "usr/bin/toy").chmod(0o4755)
    (tree / "usr/lib/old.so.1").chmod(0o750)
    (tree / "usr/lib/plain.so").chmod(0o640)
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
            "version": "1=2",
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


_TOY = rule("library", "usr/lib/libtoy.so.2.0", "/l/libtoy.so.2.0", "libtoy.so")
_TOYCTL = rule("binary", "usr/bin/toy", "/usr/bin/toy")
_FIRMWARE = {f"/lib/firmware/toy/{name}.bin": "0644" for name in "ab"}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (
            [_TOY],
            {
                "/l/libtoy.so": "-> libtoy.so.2.0",
                "/l/libtoy.so.1": "-> libtoy.so.2.0",
                "/l/libtoy.so.2.0": "0644 libtoy.so.1 64",
            },
        ),
        # The source may be a link, whose target names the file.
        (
            [rule("library", "usr/lib/libtoy.so", "/l/")],
            {"/l/libtoy.so.1": "-> libtoy.so.2.0", "/l/libtoy.so.2.0": "0644 libtoy.so.1 64"},
        ),
        ([rule("library", "usr/lib/old.so.1", "/l/old.so.1")], {"/l/old.so.1": "0755 old.so.1 32"}),
        ([rule("library", "usr/lib/odd.so.1", "/l/odd.so.1")], {"/l/odd.so.1": "0644"}),
        ([rule("library", "usr/lib/plain.so", "/l/plain.so")], {"/l/plain.so": "0644"}),
        # It is executable, and loses its set-id bits.
        ([_TOYCTL], {"/usr/bin/toy": "0755"}),
        ([_TOYCTL, _TOYCTL], {"/usr/bin/toy": "0755"}),
        # Under either root.
        ([rule("firmware", "lib/firmware/toy/*.bin", "/lib/firmware/toy/")], _FIRMWARE),
        ([rule("firmware", "usr/lib/firmware/toy/*.bin", "/lib/firmware/toy/")], _FIRMWARE),
    ],
)
def test_a_rule_places_files(
    source: Path, tmp_path: Path, rules: list[dict[str, Any]], expected: dict[str, str]
) -> None:
    files = collect(plan(*rules), source, tmp_path / "out", Tools())["files"]
    found = {}
    for file in files:
        path = tmp_path / "out/driver" / file["path"].lstrip("/")
        words = (file["mode"], file["soname"], file["elf_class"])
        plain = " ".join(str(word) for word in words if word is not None)
        found[file["path"]] = f"-> {file['link']}" if file["link"] else plain
        assert not file["link"] or path.readlink() == Path(file["link"])
        assert file["link"] or f"{path.stat().st_mode & 0o7777:04o}" == file["mode"]
    assert (found, len(files)) == (expected, len(expected))


def test_modules_may_be_globs(source: Path, tmp_path: Path) -> None:
    found = collect(plan(modules=("*.ko",)), source, tmp_path / "out", Tools())
    assert [module["name"] for module in found["modules"]] == ["toy"]
    with pytest.raises(CollectError):
        collect(plan(modules=("none/*.ko",)), source, tmp_path / "other", Tools())


def test_a_check_runs_a_program_of_the_artifact(source: Path, tmp_path: Path) -> None:
    wanted = plan(rule("binary", "usr/bin/toy", "/usr/bin/toyctl"))
    with pytest.raises(CollectError) as caught:
        collect(wanted | {"check": {"command": ["toyctll"]}}, source, tmp_path / "a", Tools())
    assert "'toyctl'" in str(caught.value)
    for number, name in enumerate(("toyctl", "/usr/bin/toyctl")):
        check = {"command": [name, "--check"]}
        made = collect(wanted | {"check": check}, source, tmp_path / f"{number}", Tools())
        assert made["check"] == check


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
    named = ("other.ko", "toy.ko", "usr/bin/none", "usr/lib/outside.so", "/one")
    assert len(caught.value.problems) == len(named)
    assert all(name in said for name, said in zip(named, caught.value.problems, strict=True))
    assert not any(call[0] == "depmod" for call in tools.calls)


def test_user_space_that_is_a_layer_is_described_with_the_features_that_there_are(
    source: Path, tmp_path: Path
) -> None:
    listed: dict[str, Any] = {"path": "/usr/bin/smi", "features": ["f", "graphics"]}
    wanted = plan() | {"container": {"features": {"f": {}}}, "userspace": [listed]}
    made = collect(wanted, source, tmp_path / "out", Tools())
    assert made["files"] == [{**listed, "features": ["f"]}]
    # None of its files is placed a second time.
    wanted["files"] = [rule("binary", "usr/bin/toy", listed["path"])]
    with pytest.raises(CollectError):
        collect(wanted, source, tmp_path / "again", Tools())


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
        folders = (source, out, userspace, folder / "shell", folder / "pod")
        words = [str(path) for path in (folder / "build.json", *folders)]
        main(words, Tools(kernel=kernel))
        manifest = json.loads((out / "driver/manifest.json").read_text())
        assert [file["path"] for file in manifest["files"]] == (
            ["/usr/lib64/libtoy.so.1", "/usr/lib64/libtoy.so.2.0"] if has_userspace else []
        )
        assert [path.name for path in (out / "driver").iterdir()] == ["manifest.json"]
        tops = (out.parent, userspace.parent, folder / "shell", folder / "pod")
        paths = [path for top in tops for path in (top, *top.rglob("*"))]
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


ARCHITECTURES = {
    "x86_64": ("x86_64", "x86_64-linux-gnu"),
    "aarch64": ("arm64", "aarch64-linux-gnu"),
    "ppc64le": ("powerpc", "powerpc64le-linux-gnu"),
    "s390x": ("s390", "s390x-linux-gnu"),
    "riscv64": ("riscv", "riscv64-linux-gnu"),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_placeholder_of_a_recipe_has_a_value(architecture: str) -> None:
    pinned = pin("nvidia", "535.261.03", "open")
    kernel = pinned.kernel.model_copy(update={"architecture": architecture})
    values = placeholders(pinned.model_copy(update={"kernel": kernel}))
    # {jobs} is the build call's: it never changes the result.
    assert values.keys() | {"jobs"} == PLACEHOLDERS
    assert (values["arch"], values["multiarch"]) == ARCHITECTURES[architecture]
