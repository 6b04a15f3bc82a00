"""NVIDIA's .run: read without running it, and taken apart."""

import hashlib
import json
import lzma
import signal
import tarfile
from pathlib import Path

import pytest

from kit.runfile import write_runfile
from provision.errors import ProvisionError
from provision.manifest import DriverFile
from provision.sources.runfile import LAYER, repack
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
    assert error.details == "zstd: premature end"
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


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\n<!DOCTYPE html><html>Sign in</html>", "is a web page"),
        (b"\x7fELF", "doesn't begin with '#!'"),
        (b"#!/bin/sh\necho hello\n", "no 'skip=' in it"),
        (b"#!/bin/sh\nskip=900\n", "it ends before line 900"),
        (b"#!/bin/sh\nskip=3\nsomething else", "compressed in an unknown way"),
        (b"", "doesn't begin with '#!'"),
    ],
)
def test_another_kind_of_file_is_called_what_it_is(data: bytes, said: str, tmp_path: Path) -> None:
    run = tmp_path / "a.run"
    run.write_bytes(data)
    assert said in refused(run, tmp_path).message


@pytest.mark.parametrize("left", [0.5, 0.99])
def test_a_file_that_was_cut_off_is_called_damaged(
    left: float, whole: Path, tmp_path: Path
) -> None:
    data = whole.read_bytes()
    whole.write_bytes(data[: int(len(data) * left)])
    assert "is damaged or cut off" in refused(whole, tmp_path).message


def test_another_version_or_architecture_is_named(whole: Path, tmp_path: Path) -> None:
    assert f"of the version {VERSION}, not 1.0" in refused(whole, tmp_path, version="1.0").message
    error = refused(whole, tmp_path, architecture="aarch64")
    assert "for the architecture x86_64, not aarch64" in error.message


def test_a_content_above_the_limit_is_refused(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    with pytest.raises(ProvisionError):
        repack(whole, pinned(), tmp_path / "parts", limit=4096)


def test_a_list_that_multiplies_a_file_is_refused(tmp_path: Path) -> None:
    rows = [f"nvidia_icd.json 0644 VULKAN_ICD_JSON d{n}/ MODULE:opengl" for n in range(500)]
    files = {**contents(*rows), "nvidia_icd.json": bytes(4000)}
    run = write_runfile(tmp_path / "a.run", VERSION, files)
    (tmp_path / "parts").mkdir()
    with pytest.raises(ProvisionError):
        repack(run, pinned(), tmp_path / "parts", limit=500_000)


def odd(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


def sparse(name: str) -> tarfile.TarInfo:
    """A file of 1 TB of which nothing is there."""
    entry = odd(name)
    entry.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(10**12)}
    return entry


def test_a_header_that_makes_no_sense_is_damage(tmp_path: Path) -> None:
    entry = odd("kernel-open/hole")
    entry.pax_headers = {"GNU.sparse.map": "x,y", "GNU.sparse.size": "7"}
    run = write_runfile(tmp_path / "a.run", VERSION, contents(), more=[entry])
    assert "is damaged or cut off" in refused(run, tmp_path).message


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (odd("/etc/passwd"), "'/etc/passwd' leads out"),
        (odd("../x"), "'../x' leads out"),
        (odd("a/../../x"), "leads out"),
        (odd("nvidia-smi"), "'nvidia-smi' comes twice"),
        (odd("node", tarfile.CHRTYPE), "'node' is neither file, folder nor link"),
        (odd("hard", tarfile.LNKTYPE, "nvidia-smi"), "'hard' is neither file"),
        (odd("out", tarfile.SYMTYPE, "/etc/shadow"), "'out' is a link out of it"),
        (sparse("kernel-open/hole"), "'kernel-open/hole' is neither file"),
        (odd("a/out", tarfile.SYMTYPE, "../../etc"), "'a/out' is a link out of it"),
    ],
)
def test_nothing_leads_out_of_the_file(entry: tarfile.TarInfo, said: str, tmp_path: Path) -> None:
    run = write_runfile(tmp_path / "a.run", VERSION, contents(), more=[entry])
    assert said in str(refused(run, tmp_path).details)


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
    assert str(error.details) == f"'{CUDA}' is a damaged ELF file"
