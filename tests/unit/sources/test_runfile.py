"""NVIDIA's .run, and sources with a dkms.conf: read without running them."""

from __future__ import annotations

import hashlib
import json
import lzma
import signal
import tarfile
from pathlib import Path

import pytest

from kit.runfile import write_runfile
from provision.catalogue import Recipe
from provision.errors import ConfigError, ProvisionError
from provision.manifest import DriverFile
from provision.pin import ArchiveSource, GitSource
from provision.sources.candidates import (
    SourceContext,
    candidates,
    components_of,
    pin_sources,
    scripts_of,
    tools_of,
)
from provision.sources.runfile import LAYER, repack
from unit.fake_archive import archive_of, stanza
from unit.recipes import recipe
from unit.sources.libraries import library
from unit.sources.runfiles import (
    CUDA,
    ML,
    VERSION,
    contents,
    pinned,
    refused,
    rows_of,
    taken_apart,
)
from unit.zstd_program import Zstd


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_runfile(tmp_path / "driver.run", VERSION, contents())


def test_user_space_is_a_layer_at_its_container_paths(whole: Path, tmp_path: Path) -> None:
    parts = taken_apart(whole, tmp_path)
    rows = rows_of(parts)
    assert {path: (row["kind"], tuple(row["features"])) for path, row in rows.items()} == {
        "/usr/lib64/nvidia/libcuda.so": ("library", ("compute", "video")),
        "/usr/lib64/nvidia/libcuda.so.1": ("library", ("compute", "video")),
        f"/usr/lib64/nvidia/{CUDA}": ("library", ("compute", "video")),
        "/usr/lib/nvidia/libcuda.so.1": ("library", ("compat32",)),
        f"/usr/lib/nvidia/{CUDA}": ("library", ("compat32",)),
        f"/usr/lib64/nvidia/{ML}": ("library", ("utility",)),
        "/usr/lib64/nvidia/libnvidia-ml.so.1": ("library", ("utility",)),
        "/usr/bin/nvidia-smi": ("binary", ("utility",)),
        "/usr/bin/nvidia-modprobe": ("binary", ()),
        "/etc/OpenCL/vendors/nvidia.icd": ("miscellaneous", ("compute",)),
        "/usr/share/vulkan/icd.d/nvidia_icd.json": ("miscellaneous", ("graphics",)),
        "/usr/share/vulkan/icd.d/nvidia_old.json": ("miscellaneous", ("graphics",)),
        "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json": ("miscellaneous", ("graphics",)),
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin": ("firmware", ()),
        "/usr/share/doc/nvidia/LICENSE": ("miscellaneous", ()),
    }
    native, compat = rows[f"/usr/lib64/nvidia/{CUDA}"], rows[f"/usr/lib/nvidia/{CUDA}"]
    assert (native["elf_class"], native["soname"]) == (64, "libcuda.so.1")
    assert (compat["elf_class"], compat["soname"]) == (32, "libcuda.so.1")
    for row in rows.values():
        DriverFile.model_validate_json(json.dumps(row))


def test_what_is_said_of_the_layer_is_what_is_in_it(whole: Path, tmp_path: Path) -> None:
    parts = taken_apart(whole, tmp_path)
    rows = rows_of(parts)
    with tarfile.open(parts[LAYER]) as tar:
        members = {f"/{m.name}".removeprefix("/opt/driver"): m for m in tar if not m.isdir()}
        assert members.keys() == rows.keys()
        for path, row in rows.items():
            if row["link"]:
                assert members[path].linkname == row["link"]
                continue
            stream = tar.extractfile(members[path])
            assert stream is not None
            assert hashlib.sha256(stream.read()).hexdigest() == row["sha256"]
            assert f"{members[path].mode:04o}" == row["mode"]
        # No set-id bits: containers see them.
        assert rows["/usr/bin/nvidia-modprobe"]["mode"] == "0755"


def test_the_source_of_the_modules_has_its_prebuilt_objects(whole: Path, tmp_path: Path) -> None:
    parts = taken_apart(whole, tmp_path)
    assert "kernel" not in parts
    with tarfile.open(parts["kernel-open"]) as tar:
        names = ["kernel-open/Makefile", "kernel-open/nvidia/nv-kernel.o_binary"]
        # And which cards they drive.
        assert tar.getnames() == [*names, "supported-gpus/supported-gpus.json"]


def test_the_same_file_gives_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    other = write_runfile(tmp_path / "other.run", VERSION, contents(), compression="gz")
    first = {name: path.read_bytes() for name, path in taken_apart(whole, tmp_path).items()}
    second = {name: path.read_bytes() for name, path in taken_apart(other, tmp_path).items()}
    assert first == second


def test_newer_drivers_say_themselves_what_a_file_is_for(tmp_path: Path) -> None:
    said = [
        {"name": ML, "type": "LIB", "category": ["nvml"]},
        {"name": ML, "type": "LIB", "category": ["egl_gbm", "new-one"]},
        {"name": "nvidia-smi", "type": "BINARY", "category": ["new-one"]},
    ]
    files = {**contents(), "sandboxutils-filelist.json": json.dumps(said).encode()}
    rows = rows_of(taken_apart(write_runfile(tmp_path / "a.run", VERSION, files), tmp_path))
    assert rows[f"/usr/lib64/nvidia/{ML}"]["features"] == ["graphics", "utility"]
    assert rows["/usr/bin/nvidia-smi"]["features"] == ["utility"]


def test_zstd_is_left_to_its_own_program(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = whole.read_bytes().partition(b"\xfd7zXZ")[0]
    packed = b"\x28\xb5\x2f\xfd and the rest"
    other = tmp_path / "zstd.run"
    other.write_bytes(head + packed)
    content = lzma.decompress(whole.read_bytes()[len(head) :])
    zstd = Zstd.put(tmp_path / "zstd", monkeypatch, packed, content)
    assert rows_of(taken_apart(other, tmp_path)) == rows_of(taken_apart(whole, tmp_path))
    # What it writes is bounded while it writes.
    assert zstd.called[0] == 8 << 30
    zstd.end(1, "zstd: premature end")
    error = refused(other, tmp_path)
    assert "zstd: premature end" in error.message
    zstd.end(-signal.SIGXFSZ)
    refused(other, tmp_path)
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
        "files",
        "kernel-open",
        "layer",
    ]


@pytest.mark.parametrize("soname", [".", "..", "x/../../y", "lib\nx.so", ""])
def test_a_soname_that_is_no_name_of_a_file_gets_no_link(tmp_path: Path, soname: str) -> None:
    run = write_runfile(tmp_path / "a.run", VERSION, {**contents(), ML: library(soname)})
    paths = rows_of(taken_apart(run, tmp_path))
    assert [path for path in paths if path.startswith("/usr/lib64/nvidia/libnvidia-ml")] == [
        f"/usr/lib64/nvidia/{ML}"
    ]
    assert not [path for path in paths if "\n" in path or path.endswith((".", "y"))]


def odd(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


def sparse(name: str) -> tarfile.TarInfo:
    """A file of 1 TB of which nothing is there."""
    entry = odd(name)
    entry.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(10**12)}
    return entry


@pytest.mark.parametrize(
    "data",
    [
        b"\n<!DOCTYPE html><html>Sign in</html>",
        b"\x7fELF",
        b"#!/bin/sh\necho hello\n",
        b"#!/bin/sh\nskip=900\n",
        b"#!/bin/sh\nskip=3\nsomething else",
        b"",
    ],
)
def test_another_kind_of_file_is_refused(data: bytes, tmp_path: Path) -> None:
    run = tmp_path / "a.run"
    run.write_bytes(data)
    refused(run, tmp_path)


@pytest.mark.parametrize("left", [0.5, 0.99])
def test_a_file_that_was_cut_off_is_refused(left: float, whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    whole.write_bytes(data[: int(len(data) * left)])
    refused(whole, tmp_path)


@pytest.mark.parametrize("other", [{"version": "1.0"}, {"architecture": "aarch64"}])
def test_another_version_or_architecture_is_refused(
    whole: Path, tmp_path: Path, other: dict[str, str]
) -> None:
    assert next(iter(other.values())) in refused(whole, tmp_path, **other).message


@pytest.mark.parametrize(("files", "limit"), [(0, 4096), (500, 500_000)])
def test_a_content_above_the_limit_is_refused(tmp_path: Path, files: int, limit: int) -> None:
    """By itself, or because its list multiplies a file."""
    rows = [f"nvidia_icd.json 0644 VULKAN_ICD_JSON d{n}/ MODULE:opengl" for n in range(files)]
    content = {**contents(*rows), "nvidia_icd.json": bytes(4000)}
    run = write_runfile(tmp_path / "a.run", VERSION, content)
    (tmp_path / "parts").mkdir()
    with pytest.raises(ProvisionError):
        repack(run, pinned(), tmp_path / "parts", limit=limit)


@pytest.mark.parametrize(
    "entry",
    [
        odd("/etc/passwd"),
        odd("../x"),
        odd("a/../../x"),
        # It comes twice.
        odd("nvidia-smi"),
        odd("node", tarfile.CHRTYPE),
        odd("hard", tarfile.LNKTYPE, "nvidia-smi"),
        odd("out", tarfile.SYMTYPE, "/etc/shadow"),
        odd("a/out", tarfile.SYMTYPE, "../../etc"),
        sparse("kernel-open/hole"),
    ],
    ids=lambda entry: entry.name,
)
def test_nothing_leads_out_of_the_file(entry: tarfile.TarInfo, tmp_path: Path) -> None:
    run = write_runfile(tmp_path / "a.run", VERSION, contents(), more=[entry])
    assert entry.name in str(refused(run, tmp_path).details)


def test_a_header_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    entry = odd("kernel-open/hole")
    entry.pax_headers = {"GNU.sparse.map": "x,y", "GNU.sparse.size": "7"}
    refused(write_runfile(tmp_path / "a.run", VERSION, contents(), more=[entry]), tmp_path)


def test_a_link_inside_may_stand_for_a_library(tmp_path: Path) -> None:
    files = contents()
    real = files.pop(ML)
    run = write_runfile(
        tmp_path / "a.run",
        VERSION,
        {**files, "real/lib": real},
        more=[odd(ML, tarfile.SYMTYPE, "real/lib")],
    )
    assert rows_of(taken_apart(run, tmp_path))[f"/usr/lib64/nvidia/{ML}"]["elf_class"] == 64


def test_a_damaged_library_is_named(tmp_path: Path) -> None:
    files = {**contents(), CUDA: library("libcuda.so.1")[:80]}
    error = refused(write_runfile(tmp_path / "a.run", VERSION, files), tmp_path)
    assert CUDA in str(error.details)


DEBIAN = ("debian", "debian:12", "apt")
SHA256 = "0" * 64
COMMIT = "1" * 40
FLAVOUR = {"dkms": {"licences": ["MIT"]}}
DEPENDS = "dkms (>= 3), perl:any | none, libc6-dev | libc-dev, kmod, more-dkms"
PACKAGES = {
    ("bookworm", "main"): "\n".join(
        [
            stanza("tool-dkms", "2.1-3", depends=DEPENDS),
            stanza("tool", "2.1-3"),
            *(stanza(name, "5-1") for name in ("dkms", "kmod", "libc6-dev", "more-dkms", "perl")),
        ]
    )
}


def dkms(**source: object) -> Recipe:
    return recipe(
        source={"kind": "dkms", **source}, flavours=FLAVOUR, kernels=[], patches=[], files=[]
    )


def test_a_package_with_a_dkms_conf_is_a_whole_source() -> None:
    index = archive_of(PACKAGES)
    context = SourceContext("debian 12", DEBIAN, index)
    of = dkms(package="tool-dkms", components=["contrib", "main"], userspace=["tool"])
    [(version, variant)] = candidates(of, "dkms", context).items()
    pinned = pin_sources("made-up", version, variant, context)
    assert version == "2.1"
    assert [source.text for source in pinned.sources] == ["tool-dkms 2.1-3", "tool 2.1-3"]
    assert components_of(of, DEBIAN) == ("contrib",)
    assert tools_of(variant) == ()
    # Of what the package depends on, neither DKMS nor what every build has.
    assert pinned.needs == ("libc6-dev", "perl")
    assert scripts_of(variant) == ("dkms.bash",)
    assert variant.build.modules == ("dkms-modules/*.ko",)
    assert "{kernel}" in variant.build.command
    standing = of.standing(version="2.1", flavour="dkms", kernel_release="7.0-anything")
    assert standing.known == "untried"


def test_releases_are_files_or_commits() -> None:
    url = "https://driver.example/tool"
    of = dkms(
        packages=["flex"],
        releases=[
            {"version": "1.0", "url": url, "sha256": SHA256},
            {"version": "1.1", "url": url, "sha256": SHA256, "commit": COMMIT},
        ],
    )
    context = SourceContext("rocky 9", ("rocky",))
    newest, older = candidates(of, "dkms", context).items()
    [commit], [file] = (pin_sources("made-up", *one, context).sources for one in (newest, older))
    assert isinstance(commit, GitSource)
    assert isinstance(file, ArchiveSource)
    assert tools_of(newest[1]) == ("ca-certificates", "flex", "git")


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"package": "tool-dkms", "releases": [{"version": "1"}]},
        {"userspace": ["tool"], "releases": [], "package": None},
        {"package": "tool-dkms", "build": {"dkms": {"command": ["make"], "modules": ["a.ko"]}}},
        {"releases": [{"version": "1", "url": "x", "commit": "2"}]},
    ],
)
def test_what_a_recipe_may_not_say(source: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        dkms(**source)
