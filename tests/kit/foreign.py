"""Programs of another Debian than this machine's, unpacked and run with their own C library."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kit.cache import cached
from kit.files import write
from kit.process import run
from kit.repackaged import download


def program_root(
    suite: str, package: str, *, alone: bool = False, components: str = "main"
) -> Path:
    """The folder with the files of a package, and of all that it depends on, if not `alone`."""

    def make(draft: Path) -> None:
        draft.mkdir()
        with tempfile.TemporaryDirectory() as name:
            for deb in download(suite, [package], Path(name), components=components):
                if not alone or deb.name.startswith(f"{package}_"):
                    run(["dpkg-deb", "--extract", deb, draft])

    return cached(f"{package}-{suite}{'-alone' if alone else ''}", make)


def foreign_program(package: str, folder: Path) -> Path:
    """Put the program that a package of Debian 13 is named for into `folder`, to be run there."""
    return _starter(program_root("trixie", package), f"usr/bin/{package}", folder)


def emulator() -> Path:
    """Debian 13's emulator of arm64, which knows the system call openat2; it is static."""

    def make(draft: Path) -> None:
        with tempfile.TemporaryDirectory() as name:
            (deb,) = download("trixie", ["qemu-user"], Path(name))
            script = 'dpkg-deb --fsys-tarfile "$1" | tar -xO ./usr/bin/qemu-aarch64 >"$2"'
            run(["sh", "-euc", script, "sh", deb, draft])
        draft.chmod(0o755)

    return cached("qemu-aarch64-trixie", make)


def kernels_sign_file(folder: Path) -> Path:
    """Put the program that signs modules in the kernel's own build into `folder`."""
    place = "usr/lib/linux-kbuild-6.1/scripts/sign-file"
    return _starter(program_root("bookworm", "linux-kbuild-6.1"), place, folder)


def _starter(root: Path, place: str, folder: Path) -> Path:
    # Packages of Debian 12 have files on both sides of the merge of /usr.
    places = [root / name / "x86_64-linux-gnu" for name in ("lib", "usr/lib")]
    (loader,) = (file for folder in places for file in folder.glob("ld-linux-x86-64.so.2"))
    libraries = ":".join(str(folder) for folder in places)
    text = f'#!/bin/sh\nexec {loader} --library-path {libraries} {root}/{place} "$@"\n'
    return write(folder / Path(place).name, text, 0o755)
