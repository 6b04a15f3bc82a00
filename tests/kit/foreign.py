"""Programs of another Debian than this machine's, unpacked and run with their own C library."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kit.cache import cached
from kit.process import run
from kit.repackaged import download

__all__ = ["foreign_program", "program_root"]


def program_root(suite: str, package: str) -> Path:
    """The folder with the files of a package and of all that it depends on."""

    def make(draft: Path) -> None:
        draft.mkdir()
        with tempfile.TemporaryDirectory() as name:
            for deb in download(suite, [package], Path(name)):
                run(["dpkg-deb", "--extract", deb, draft])

    return cached(f"{package}-{suite}", make)


def foreign_program(suite: str, package: str, folder: Path) -> Path:
    """Put the program of a package that has its name into `folder`, to be run from there."""
    root = program_root(suite, package)
    libraries = root / "usr/lib/x86_64-linux-gnu"
    loader = f"{libraries}/ld-linux-x86-64.so.2 --library-path {libraries}"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / package
    program.write_text(f'#!/bin/sh\nexec {loader} {root}/usr/bin/{package} "$@"\n')
    program.chmod(0o755)
    return program
