"""What only exports need of an image, on trees; the machine's programs, or stand-ins."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kit.probe import need_programs
from provision.build.collector import ExtraError, add_extras, add_needs, add_pod_programs, add_shell
from provision.build.step import run_tool

KERNEL = "6.1.0-56-amd64"
LOADER = "/lib64/ld-linux-x86-64.so.2"
LIBC = "/lib/x86_64-linux-gnu/libc.so.6"
HEADERS = "  INTERP 0x0\n      [Requesting program interpreter: {}]\n"
FOUND = (
    f"\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => {LIBC} (0x00007f01)\n\t{LOADER} (0x00007f02)\n"
)


class Tools:
    """Stands in for the programs, and keeps what it was asked for."""

    def __init__(self, found: str = FOUND) -> None:
        self.calls: list[list[str]] = []
        self.found = found

    def __call__(self, arguments: Sequence[str]) -> str:
        self.calls.append(list(arguments))
        words = list(arguments)
        match words[0]:
            case "readelf":
                return "" if words[-1] == "/bin/static" else HEADERS.format(LOADER)
            case "make":
                folder = Path(words[3].removeprefix("M="))
                assert (folder / "Makefile").is_file()
                for source in folder.glob("*.c"):
                    source.with_suffix(".ko").write_bytes(b"needs")
            case "strip":
                shutil.copyfile(words[-1], words[-2])
            case "ld":
                Path(words[-1]).write_bytes(b"linked")
            case "modinfo":
                return f"{KERNEL} SMP \n"
            case "depmod":
                # As builds of kmod do that look nowhere else.
                self.depmod(Path(words[2]) / "usr/lib/modules" / KERNEL)
            case _:
                return self.found
        return ""

    @staticmethod
    def depmod(folder: Path) -> None:
        """Let modules that were linked depend on the one that asks."""
        needs = next((path.name for path in folder.glob("*_needs.ko")), "")
        lines = [
            f"{path.name}:{f' {needs}' if path.read_bytes() == b'linked' else ''}\n"
            for path in sorted(folder.glob("*.ko"))
        ]
        (folder / "modules.dep").write_text("".join(lines))
        (folder / "modules.dep.bin").write_text("".join(lines))
        (folder / "modules.alias").write_text("alias\n")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    root = tmp_path / "base"
    for path in ("/bin/sh", "/bin/mkdir", "/bin/cp", LOADER, LIBC):
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\x7fELF")
    return root


def files(folder: Path) -> set[str]:
    return {f"/{p.relative_to(folder)}" for p in folder.rglob("*") if p.is_file()}


def test_programs_come_with_their_libraries(base: Path, tmp_path: Path) -> None:
    tools = Tools()
    add_shell(tmp_path / "shell", tools, base)
    assert files(tmp_path / "shell") == {"/bin/sh", "/bin/mkdir", "/bin/cp", LOADER, LIBC}
    assert (tmp_path / "shell/bin/sh").stat().st_mode & 0o777 == 0o755
    # The image has no cache of libraries: what is only there would not be found.
    called = ["env", "LD_TRACE_LOADED_OBJECTS=1", LOADER, "--inhibit-cache", "/bin/cp"]
    assert called in tools.calls


def test_a_program_that_is_a_script_brings_its_own(base: Path, tmp_path: Path) -> None:
    (base / "bin/cp").write_text("#!/usr/bin/coreutils --coreutils-prog-shebang=cp\n")
    (base / "usr/bin").mkdir(parents=True)
    (base / "usr/bin/coreutils").write_bytes(b"\x7fELF")
    add_shell(tmp_path / "shell", Tools(), base)
    assert {"/bin/cp", "/usr/bin/coreutils", LIBC} <= files(tmp_path / "shell")


def test_what_the_base_image_lacks_is_named(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ExtraError):
        add_shell(tmp_path / "a", Tools("\tlibz.so.1 => not found\n"), base)
    (base / "bin/mkdir").unlink()
    with pytest.raises(ExtraError):
        add_shell(tmp_path / "b", Tools(), base)


def artifact(folder: Path, *modules: tuple[str, list[str]], optional: Sequence[str] = ()) -> Path:
    """An artifact as the collector leaves it."""
    kept = folder / "lib/modules" / KERNEL
    kept.mkdir(parents=True)
    entries: list[dict[str, Any]] = []
    for name, depends in modules:
        (kept / f"{name}.ko").write_bytes(b"module")
        path = f"lib/modules/{KERNEL}/{name}.ko"
        entries.append({"name": name, "path": path, "depends": depends})
    Tools.depmod(kept)
    manifest = {
        "pin": {"kernel": {"release": KERNEL}, "driver": {"name": "toy-driver"}},
        "modules": entries,
        "host": {"optional": list(optional)},
    }
    (folder / "driver").mkdir()
    (folder / "driver/manifest.json").write_text(json.dumps(manifest))
    return folder


def test_modules_that_need_others_get_one_that_asks(tmp_path: Path) -> None:
    out = artifact(tmp_path / "out", ("toy", ["videodev", "i2c_core"]), ("toy_extra", ["toy"]))
    before = (out / f"lib/modules/{KERNEL}/modules.dep").read_text()
    tools = Tools()
    assert add_needs(out, tmp_path / "work", tools)
    source = (tmp_path / "work/source/toy_driver_needs.c").read_text()
    assert 'needed[] = { "i2c_core", "videodev" }' in source
    assert "{{" not in source
    folder = out / "lib/modules" / KERNEL
    assert (folder / "modules.dep").read_text() == (
        "toy.ko: toy_driver_needs.ko\ntoy_driver_needs.ko:\ntoy_extra.ko:\n"
    )
    # What was built stays as it is.
    assert (folder / "toy.ko").read_bytes() == b"module"
    kept = out / "host/lib/modules" / KERNEL
    assert (kept / "modules.dep").read_text() == before
    assert (kept / "toy.ko").readlink() == Path(f"../../../../lib/modules/{KERNEL}/toy.ko")
    assert (kept / "toy.ko").read_bytes() == b"module"
    assert not (kept / "toy_driver_needs.ko").exists()
    found = json.loads((out / "driver/manifest.json").read_text())["kmm"]
    assert (found["name"], found["size"], found["vermagic"]) == (
        "toy_driver_needs",
        5,
        f"{KERNEL} SMP",
    )
    assert not list(folder.glob("modules.builtin*"))


@pytest.mark.parametrize("optional", [(), ("extra",)])
def test_who_needs_nothing_gets_nothing(tmp_path: Path, optional: tuple[str, ...]) -> None:
    modules = [("toy", []), ("extra", ["toy"] if not optional else ["rdma"])]
    out = artifact(tmp_path / "out", *modules, optional=optional)
    tools = Tools()
    assert not add_needs(out, tmp_path / "work", tools)
    assert tools.calls == []
    assert not (out / "host").exists()
    assert "kmm" not in json.loads((out / "driver/manifest.json").read_text())


@pytest.fixture(scope="module")
def userspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """User space: a program with its library, one whose library is gone, and one cut off."""
    need_programs("gcc", "modprobe")
    folder = tmp_path_factory.mktemp("userspace")
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "usr/lib64").mkdir()
    (folder / "part.c").write_text("int part(void) { return 0; }\n")
    (folder / "main.c").write_text("int part(void);\nint main(void) { return part(); }\n")
    for name in ("here", "gone"):
        library = folder / f"usr/lib64/lib{name}.so.1"
        soname = f"-Wl,-soname,{library.name}"
        run_tool(["gcc", "-shared", "-fPIC", soname, "-o", str(library), str(folder / "part.c")])
        program = folder / "usr/bin" / f"with-{name}"
        run_tool(["gcc", "-o", str(program), str(folder / "main.c"), str(library)])
    (folder / "usr/lib64/libgone.so.1").unlink()
    whole = (folder / "usr/bin/with-here").read_bytes()
    (folder / "usr/bin/damaged").write_bytes(whole[: len(whole) // 8])
    return folder


def image_of(folder: Path, pod: dict[str, Any] | None) -> tuple[Path, list[Path]]:
    """An artifact as the collector leaves it, and the folders of its extras."""
    out = artifact(folder / "image/opt", ("toy", []))
    path = out / "driver/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["host"]["root"] = pod and {"libraries": "/usr/lib64", "pod": pod}
    path.write_text(json.dumps(manifest))
    return out, [folder / name for name in ("userspace", "shell", "pod")]


def left_out(out: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((out / "driver/manifest.json").read_text())["left_out"]
    return found


def test_the_pod_has_what_its_programs_need(userspace: Path, tmp_path: Path) -> None:
    """By the machine's own loader."""
    pod = tmp_path / "pod"
    # Of the driver's programs, one that does not start is left out, with the reason.
    left_out = add_pod_programs(pod, userspace, "/usr/lib64", run_tool)
    assert left_out.keys() == {"damaged", "with-gone"}
    assert left_out["with-gone"].startswith("with-gone needs libgone.so.1, which neither")
    names = {path.name for path in pod.rglob("*")}
    assert {"awk", "modprobe", "libc.so.6"} <= names
    assert "libhere.so.1" not in names


POD = {"command": "toy-driver", "daemon": ["toyd"]}


def test_what_only_exports_need_stops_no_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(_arguments: Sequence[str]) -> str:
        raise OSError(28, "No space left on device")

    out, folders = image_of(tmp_path, POD)
    before = {path: path.read_bytes() for path in (out / "lib").rglob("*") if path.is_file()}
    userspace, shell, pod = folders
    add_extras(out, userspace, shell, pod, nothing)
    assert left_out(out).keys() == {"kmm", "driver-pod"}
    assert "No space left" in left_out(out)["kmm"]
    assert "collect: left out: driver-pod: " in capsys.readouterr().out
    # What hosts use is whole, the layers are not empty, and an operator's log says what is wrong.
    assert {
        path: path.read_bytes() for path in (out / "lib").rglob("*") if path.is_file()
    } == before
    assert [*(tmp_path / "shell").iterdir()]
    assert [*(tmp_path / "pod").iterdir()]
    command = out.parent / "usr/bin/toy-driver"
    done = subprocess.run([command, "init"], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr


def test_modules_stay_as_they_are_where_kmms_own_is_not_built(tmp_path: Path) -> None:
    class Failing(Tools):
        def __call__(self, arguments: Sequence[str]) -> str:
            if arguments[0] == "depmod" and "shown" in arguments[2]:
                raise RuntimeError("'depmod' ended with status 1")
            return super().__call__(arguments)

    out = artifact(tmp_path / "out", ("toy", ["videodev"]))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(RuntimeError):
        add_needs(out, tmp_path / "work", Failing())
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
