"""Holds an unpacked Python to its promise: it asks for nothing that it does not bring."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from provision.elf import Elf, read_elf
from provision.errors import ProvisionError

_PROGRAM = "bin/python3"
# Which is what all supported architectures have.
_BITS = 64


def check_tree(tree: Path, prefix: str) -> None:
    """Check all programs and libraries of a tree.

    Args:
        tree: What will be ``prefix`` on hosts.
        prefix: That.

    Raises:
        ProvisionError: One of them would look for something outside; says which and for what.
    """
    program = tree / _PROGRAM
    if not program.is_file():
        raise ProvisionError(f"The image holds no '{prefix}/{_PROGRAM}'.")
    problems = [
        f"{path.relative_to(tree)}: {problem}"
        for path, elf in _files(tree)
        for problem in _problems(tree, prefix, path, elf)
    ]
    if problems:
        raise ProvisionError(
            f"The Python for {prefix} would need something of the host.",
            resolution="This is a defect of hostpython/relocate.py: please report it with the"
            " lines above.",
            details="\n".join(problems),
        )


def _files(tree: Path) -> Iterator[tuple[Path, Elf]]:
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as stream:
                elf = read_elf(stream)
            if elf is not None:
                yield path, elf


def _problems(tree: Path, prefix: str, path: Path, elf: Elf) -> Iterator[str]:
    library = f"{prefix}/lib"
    if elf.bits != _BITS:
        yield f"is a file of {elf.bits} bits"
    for name in elf.needed:
        if not (tree / "lib" / name).is_file():
            yield f"needs {name}, which is not there"
    if elf.runpath is not None:
        # It would put an end to the program's RPATH for what this file needs.
        yield f"looks in {elf.runpath}"
    if path.parent == tree / "bin":
        folder, _, loader = (elf.loader or "").rpartition("/")
        if folder != library or not (tree / "lib" / loader).is_file():
            yield f"is started by {elf.loader}"
        if elf.rpath != library:
            yield f"looks in {elf.rpath}, not in {library}"
