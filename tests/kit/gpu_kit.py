"""The kit for a machine with an NVIDIA GPU: a few files that need nothing there but a kernel.

`python -m kit.gpu_kit FOLDER` makes the folder, with what `tests/gpu` has and needs: a Python with
`provision`, `oci-decorator`, runc, a small Debian root without a driver, and NVIDIA's own toolkit
to compare with.
"""

from __future__ import annotations

import json
import lzma
import platform
import re
import shutil
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from kit.cache import REPOSITORY, cached, key_of
from kit.files import write
from kit.go_modules import go_programs
from kit.nvidia_toolkit import TOOLKIT, TOOLKIT_PROGRAMS, toolkit_programs
from kit.probe import find_program
from kit.process import run
from kit.product import DECORATOR, SOURCE, make_wheel
from kit.repackaged import download
from shipping.agent_tree import UNWANTED

_SOURCES = REPOSITORY / "tests/gpu"
_SUITE = "bookworm"
# A shell, the C library with its loader, what a program in C++ needs, and what these need.
_ROOT = (
    "coreutils",
    "dash",
    "libacl1",
    "libattr1",
    "libc-bin",
    "libc6",
    "libgcc-s1",
    "libgmp10",
    "libpcre2-8-0",
    "libselinux1",
    "libstdc++6",
)
_MERGED = ("bin", "lib", "lib64", "sbin")
_UNREAD = ("usr/share", "usr/lib/x86_64-linux-gnu/gconv", "usr/lib/x86_64-linux-gnu/perl-base")
_RUNC = "github.com/opencontainers/runc"
# A program that a script starts by this name starts again by it, whatever the machine's C library.
_PYTHON = """\
#!/bin/sh
bin=${0%/*}
exec "$bin/../lib/LOADER" --argv0 "$0" --library-path \
"$bin/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$bin/PROGRAM" "$@"
"""
_LIMIT = 40 << 20


def make_kit(folder: Path) -> Path:
    """Make the kit as `folder`, in place of an older one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, archive in _archives().items():
        shutil.copy2(archive, folder / f"{name}.tar.xz")
    # Beside the archives, where they can still be changed on a machine that shows a mistake.
    for source in sorted(_SOURCES.iterdir()):
        if source.is_file():
            shutil.copy2(source, folder)
    (folder / "kit.json").write_text(json.dumps(_about(), indent=1) + "\n")
    shutil.copy2(DECORATOR, folder)
    _copy_busybox(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    if size > _LIMIT:
        raise RuntimeError(f"{folder} has {size >> 20} MB, more than {_LIMIT >> 20}")
    return folder


def _archives() -> dict[str, Path]:
    """What is unpacked on the machine, each made where the cache hasn't got it."""
    installed = sorted(f"{one.name} {one.version}" for one in _required())
    source = [REPOSITORY / name for name in SOURCE if name != "docs"]
    go = REPOSITORY / "tests/data/go"
    return {
        "python": _archive("python", _make_python, sys.version, installed),
        "provision": _archive("provision", _make_provision, *source),
        "programs": _archive("programs", _make_programs, go / "runc", go / TOOLKIT),
        "root": debian_root(),
    }


def _archive(name: str, make: Callable[[Path], None], *inputs: object) -> Path:
    def pack(draft: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="provision-gpu-kit-") as place:
            tree = Path(place)
            make(tree)
            _pack(tree, draft)

    return cached(f"gpu-kit-{name}-{key_of(Path(__file__), *inputs)}.tar.xz", pack)


def _about() -> dict[str, str]:
    described = run(["git", "-C", REPOSITORY, "describe", "--always", "--dirty"], check=False)
    return {
        "commit": described.stdout.strip() or "unknown",
        "made on": platform.platform(),
        "python": platform.python_version(),
    }


def _pack(tree: Path, target: Path) -> None:
    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    # Preset 6 takes three times as long and saves a tenth.
    with (
        lzma.open(target, "wb", preset=2) as stream,
        # A busybox reads GNU's format, and not all of pax.
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        archive.add(tree, ".", filter=owned)


# Python, and provision


def _make_python(tree: Path) -> None:
    """This Python, and what provision requires; it runs wherever it lies."""
    library = Path(sysconfig.get_path("stdlib"))
    program = Path(sys.executable).resolve()
    python = tree / "python"
    packages = python / "lib" / library.name
    shutil.copytree(library, packages, ignore=shutil.ignore_patterns(*UNWANTED))
    (python / "bin").mkdir()
    shutil.copy2(program, python / "bin")
    for one in _required():
        _add_package(one, packages)
    elf = [python / "bin" / program.name, *packages.rglob("*.so")]
    loader = _take_libraries(elf, python / "lib")
    text = _PYTHON.replace("LOADER", loader).replace("PROGRAM", program.name)
    write(python / "bin/python3", text, 0o755)


def _make_provision(tree: Path) -> None:
    packages = tree / "python/lib" / Path(sysconfig.get_path("stdlib")).name
    with tempfile.TemporaryDirectory() as name:
        run([sys.executable, "-m", "zipfile", "--extract", make_wheel(Path(name)), packages])
    (data,) = packages.glob("provision-*.data")
    shutil.copytree(data / "data/share", tree / "python/share")
    shutil.rmtree(data)
    shutil.rmtree(tree / "python/share/provision/docs")


def _required() -> list[metadata.Distribution]:
    """What provision requires, and what that requires in turn."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [("provision", "")]
    while wanted:
        name, extra = wanted.pop()
        one = metadata.distribution(name)
        if one.name in found:
            continue
        if name != "provision":
            found[one.name] = one
        for line in one.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                wanted.append((requirement.name, next(iter(requirement.extras), "")))
    return [found[name] for name in sorted(found)]


def _add_package(one: metadata.Distribution, packages: Path) -> None:
    for file in one.files or ():
        # Programs lie above, and what Python compiled is of another place.
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(str(file.locate())), target)


def _take_libraries(elf: Iterable[Path], folder: Path) -> str:
    """Copy the libraries that files need, and the loader; return the loader's name."""
    said = run(["ldd", *elf], check=False).stdout
    found = {Path(path) for path in re.findall(r"(?:=> |^\t)(/\S+) \(0x", said, re.MULTILINE)}
    for path in found:
        shutil.copy2(path.resolve(), folder / path.name)
    return next(path.name for path in found if path.name.startswith("ld-linux"))


# What containers are made from


def debian_root() -> Path:
    """The archive of a Debian with a shell, the libraries of C and C++, and our examples."""
    return _archive("root", _make_root, *sorted(_SOURCES.glob("*.c*")))


def _make_root(tree: Path) -> None:
    draft = tree / "root"
    for name in _MERGED:
        (draft / "usr" / name).mkdir(parents=True)
        (draft / name).symlink_to(f"usr/{name}")
    for name in ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/local/bin", "var"):
        (draft / name).mkdir(parents=True)
    for deb in _packages():
        if deb.name.partition("_")[0] in _ROOT:
            _unpack(deb, draft)
    for name in _UNREAD:
        shutil.rmtree(draft / name, ignore_errors=True)
    (draft / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
    )
    (draft / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    # As an image has it: the loader's cache, which a driver's libraries are added to.
    run(["chroot", draft, "/sbin/ldconfig"])
    for source, program in (("vector_add.c", "vectorAdd"), ("open_libraries.c", "open_libraries")):
        target = draft / "usr/local/bin" / program
        run(["gcc", "-O2", "-Wall", "-Wextra", "-o", target, _SOURCES / source, "-ldl", "-lm"])
    if nvcc := find_program("nvcc"):
        target = draft / "usr/local/bin/vectorAddNvcc"
        run([nvcc, "-cudart", "static", "-o", target, _SOURCES / "vector_add.cu"])


def _packages() -> list[Path]:
    def make(draft: Path) -> None:
        draft.mkdir()
        download(_SUITE, [*_ROOT, "busybox-static"], draft)

    return sorted(cached(f"gpu-kit-debs-{key_of(_SUITE, _ROOT)}", make).glob("*.deb"))


def _unpack(deb: Path, root: Path) -> None:
    # What packages call /lib is a link.
    script = 'dpkg-deb --fsys-tarfile "$1" | tar --keep-directory-symlink -xC "$2"'
    run(["bash", "-o", "pipefail", "-c", script, "bash", deb, root])


def _make_programs(tree: Path) -> None:
    programs = tree / "programs"
    programs.mkdir()
    for name in (*TOOLKIT_PROGRAMS, "oci-decorator-runtime"):
        (programs / name).symlink_to("oci-decorator")
    shutil.copy2(go_programs("runc", _RUNC, c="static") / "runc", programs)
    shutil.copytree(toolkit_programs(), programs / "nvidia")


def _copy_busybox(folder: Path) -> None:
    (package,) = (deb for deb in _packages() if deb.name.startswith("busybox-static_"))
    with tempfile.TemporaryDirectory() as name:
        run(["dpkg-deb", "--extract", package, name])
        (found,) = (place for place in Path(name).rglob("bin/busybox"))
        shutil.copy2(found, folder)


if __name__ == "__main__":
    made = make_kit(Path(sys.argv[1]))
    for path in sorted(made.iterdir()):
        sys.stdout.write(f"{path}: {path.stat().st_size / (1 << 20):.1f} MB\n")
