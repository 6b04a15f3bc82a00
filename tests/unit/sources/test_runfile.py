"""NVIDIA's .run: read without running it, and taken apart."""

import hashlib
import io
import json
import lzma
import signal
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.runfile import manifest, write_runfile
from provision.elf import read_elf
from provision.errors import ProvisionError
from provision.manifest import DriverFile
from provision.pin import RunfileSource
from provision.run import Completed
from provision.sources import runfile
from provision.sources.nvidia_lists import Listed, parse_file_list, parse_manifest
from provision.sources.placement import place
from provision.sources.repack import FILES, LAYER, repack
from provision.sources.runfile import read_head
from unit.sources.libraries import library

VERSION = "580.95.05"
CUDA, ML = f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}"
ROWS = (
    "kernel-open/Makefile 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:resman",
    "kernel-open/nvidia/nv-kernel.o_binary 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:rm",
    f"{CUDA} 0755 CUDA_LIB NATIVE MODULE:gpgpu",
    f"libcuda.so.1 0000 CUDA_SYMLINK NATIVE {CUDA} MODULE:gpgpu",
    "libcuda.so 0000 CUDA_SYMLINK NATIVE libcuda.so.1 MODULE:gpgpu",
    f"32/{CUDA} 0755 CUDA_LIB COMPAT32 MODULE:gpgpu",
    f"libcuda.so.1 0000 CUDA_SYMLINK COMPAT32 {CUDA} MODULE:gpgpu",
    f"{ML} 0755 UTILITY_LIB NATIVE MODULE:nvml",
    "nvidia-smi 0755 UTILITY_BINARY MODULE:nvml",
    "nvidia-modprobe 4755 NVIDIA_MODPROBE MODULE:installer",
    "nvidia-settings 0755 UTILITY_BINARY MODULE:nvml",
    "nvidia.icd 0644 CUDA_ICD MODULE:gpgpu",
    "nvidia_icd.json 0644 VULKAN_ICD_JSON icd.d/ MODULE:opengl",
    "nvidia_layers.json 0644 VULKAN_ICD_JSON implicit_layer.d/ MODULE:opengl",
    "nvidia_old.json 0644 VULKAN_ICD_JSON MODULE:opengl",
    "firmware/gsp_ga10x.bin 0644 FIRMWARE INHERIT_PATH_DEPTH:1 MODULE:gsp",
    "libOpenCL.so.1.0.0 0755 OPENCL_WRAPPER_LIB NATIVE MODULE:opencl",
    "html/index.html 0644 DOCUMENTATION INHERIT_PATH_DEPTH:1 MODULE:installer",
)


def contents(*rows: str, text: str | None = None) -> dict[str, bytes | Path]:
    files: dict[str, bytes | Path] = {
        ".manifest": (text or manifest(VERSION, [*ROWS, *rows])).encode(),
        "LICENSE": b"licence",
        "kernel-open/Makefile": b"all:\n",
        "kernel-open/nvidia/nv-kernel.o_binary": b"core",
        CUDA: library("libcuda.so.1"),
        f"32/{CUDA}": library("libcuda.so.1", bits=32),
        # Its list has no link for it.
        ML: library("libnvidia-ml.so.1"),
    }
    for name in (
        "nvidia-smi",
        "nvidia-modprobe",
        "nvidia-settings",
        "nvidia.icd",
        "nvidia_icd.json",
        "nvidia_layers.json",
        "nvidia_old.json",
        "firmware/gsp_ga10x.bin",
        "libOpenCL.so.1.0.0",
        "html/index.html",
    ):
        files[name] = name.encode()
    return files


def pinned(**changes: object) -> RunfileSource:
    data = {
        "url": f"https://driver.example/NVIDIA-Linux-x86_64-{VERSION}.run",
        "sha256": "0" * 64,
        "version": VERSION,
        "architecture": "x86_64",
        **changes,
    }
    return RunfileSource.model_validate(data)


def taken_apart(run: Path, tmp_path: Path, **changes: object) -> dict[str, Path]:
    folder = tmp_path / "parts"
    folder.mkdir(exist_ok=True)
    return repack(run, pinned(**changes), folder)


def rows_of(parts: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    document = json.loads(parts[FILES].read_text())
    return {row["path"]: row for row in document["files"]}


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
        assert tar.getnames() == ["kernel-open/Makefile", "kernel-open/nvidia/nv-kernel.o_binary"]


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


def refused(run: Path, tmp_path: Path, **changes: object) -> ProvisionError:
    with pytest.raises(ProvisionError) as caught:
        taken_apart(run, tmp_path, **changes)
    assert not (tmp_path / "parts/payload.tar").exists()
    assert caught.value.resolution
    return caught.value


def test_zstd_is_left_to_its_own_program(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = whole.read_bytes().partition(b"\xfd7zXZ")[0]
    packed = b"\x28\xb5\x2f\xfd and the rest"
    other = tmp_path / "zstd.run"
    other.write_bytes(head + packed)
    status = 0
    blocks = str((8 << 30) // 512)
    monkeypatch.setattr(runfile, "find_program", lambda name: f"/usr/bin/{name}")

    def program(argv: list[str | Path], *, why: str, check: bool, timeout: float) -> Completed:
        assert (why, check) == ("unpack zstd.run", False)
        assert timeout > 0
        target, source = Path(argv[-2]), Path(argv[-1])
        # What it writes is bounded while it writes, by the shell that becomes it: 8 GiB in blocks.
        assert argv[:6] == [
            "sh",
            "-c",
            'ulimit -f "$1" && shift && exec "$@"',
            "sh",
            blocks,
            "zstd",
        ]
        assert source.read_bytes() == packed
        target.write_bytes(lzma.decompress(whole.read_bytes()[len(head) :]))
        return Completed((), status, "", "zstd: premature end")

    monkeypatch.setattr(runfile, "run", program)
    assert rows_of(taken_apart(other, tmp_path)) == rows_of(taken_apart(whole, tmp_path))
    status = 1
    error = refused(other, tmp_path)
    assert "is damaged or cut off" in error.message
    assert error.details == "zstd: premature end"
    status = -signal.SIGXFSZ
    assert "more than 8192 MiB" in refused(other, tmp_path).message
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
    assert "driver.toml" in str(error.resolution)


def test_a_content_above_the_limit_is_refused(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    with pytest.raises(ProvisionError, match="more than 0 MiB"):
        repack(whole, pinned(), tmp_path / "parts", limit=4096)


def test_a_list_that_multiplies_a_file_is_refused(tmp_path: Path) -> None:
    rows = [f"nvidia_icd.json 0644 VULKAN_ICD_JSON d{n}/ MODULE:opengl" for n in range(500)]
    files = {**contents(*rows), "nvidia_icd.json": bytes(4000)}
    run = write_runfile(tmp_path / "a.run", VERSION, files)
    (tmp_path / "parts").mkdir()
    with pytest.raises(ProvisionError, match="user space has more than 0 MiB"):
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


def test_files_that_the_list_names_and_that_are_missing_are_named_together(tmp_path: Path) -> None:
    files = contents()
    del files[CUDA], files["nvidia-smi"]
    error = refused(write_runfile(tmp_path / "a.run", VERSION, files), tmp_path)
    assert str(error.details).splitlines() == [CUDA, "nvidia-smi"]


def test_a_damaged_library_is_named(tmp_path: Path) -> None:
    files = {**contents(), CUDA: library("libcuda.so.1")[:80]}
    error = refused(write_runfile(tmp_path / "a.run", VERSION, files), tmp_path)
    assert str(error.details) == f"'{CUDA}' is a damaged ELF file"


def test_unknown_types_are_named_and_can_be_left_out(tmp_path: Path) -> None:
    run = write_runfile(
        tmp_path / "a.run",
        VERSION,
        {
            **contents(
                "new.thing 0644 NEW_THING MODULE:gpgpu", "other 0644 OTHER_THING MODULE:powerd"
            ),
            "new.thing": b"x",
        },
    )
    error = refused(run, tmp_path)
    # What no feature wants may be of any type.
    assert error.details == "NEW_THING, such as new.thing"
    assert "leave_out" in str(error.resolution)
    assert rows_of(taken_apart(run, tmp_path, leave_out=("NEW_THING",)))


def test_lines_without_sense_are_named_together(tmp_path: Path) -> None:
    rows = ("libx.so 9999 CUDA_LIB", "one 0755", "l 0000 CUDA_SYMLINK", "../x 0755 CUDA_LIB")
    run = write_runfile(tmp_path / "a.run", VERSION, contents(*rows))
    lines = str(refused(run, tmp_path).details).splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"line {n}" for n in range(27, 31)]


@pytest.mark.parametrize("text", ["one line", manifest("1.0", ROWS)])
def test_a_list_of_another_version_is_refused(text: str, tmp_path: Path) -> None:
    run = write_runfile(tmp_path / "a.run", VERSION, contents(text=text))
    assert "can't be used" in refused(run, tmp_path).message


@given(st.text())
def test_any_list_is_read_or_refused(text: str) -> None:
    with suppress(ProvisionError):
        listed = parse_manifest(manifest(VERSION, text.splitlines()), version=VERSION)
        place(listed, version=VERSION, said={})


_WORDS = st.sampled_from(["a", "b/c", "../d", "/", "x/", "INHERIT_PATH_DEPTH:1", "COMPAT32"])
_TYPES = st.sampled_from(["CUDA_LIB", "CUDA_SYMLINK", "FIRMWARE", "UTILITY_BINARY", "CUDA_ICD"])


@given(st.lists(st.tuples(_WORDS, st.sampled_from(["0000", "0755"]), _TYPES, st.lists(_WORDS))))
def test_every_file_goes_below_a_known_folder(
    rows: list[tuple[str, str, str, list[str]]],
) -> None:
    lines = [" ".join([name, mode, kind, *rest, "MODULE:gpgpu"]) for name, mode, kind, rest in rows]
    for line in lines:
        try:
            listed: list[Listed] = parse_manifest(manifest(VERSION, [line]), version=VERSION)
        except ProvisionError:
            continue
        for one in place(listed, version=VERSION, said={}):
            assert one.path.startswith(("/usr/", "/etc/OpenCL/", "/lib/firmware/nvidia/"))
            assert ".." not in one.path


@given(st.text() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_any_second_list_is_read(text: str) -> None:
    assert isinstance(parse_file_list(text), dict)


@given(st.binary(max_size=200), st.integers(0, 300), st.sampled_from([32, 64]))
def test_a_library_is_read_or_refused(noise: bytes, at: int, bits: int) -> None:
    data = bytearray(library("libx.so.1", bits=bits))
    data[at : at + len(noise)] = noise
    try:
        found = read_elf(io.BytesIO(bytes(data)))
    except ValueError:
        return
    assert found is None or found.bits in {32, 64}


@given(st.binary(max_size=2000))
def test_any_head_is_read_or_refused(data: bytes) -> None:
    with suppress(ProvisionError):
        assert read_head(io.BytesIO(b"#!" + data), "a.run").offset > 0
