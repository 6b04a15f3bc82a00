"""Reads what ELF files ask for, and holds an unpacked Python to its promise.

Source: the ELF-64 object file format, https://refspecs.linuxfoundation.org/elf/gabi4+/ (chapters 4
and 5); only 64-bit files, which is what all
supported architectures have.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provision.errors import ProvisionError

_MAGIC = b"\x7fELF"
_CLASS_64 = 2
_ORDERS = {1: "<", 2: ">"}
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 1, 5, 15, 29
_PROGRAM = "bin/python3"
_MAGIC_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Elf:
    """What a program or library asks for.

    Attributes:
        loader: The program interpreter; None: it has none.
        needed: Names of libraries.
        rpath: Folders to look in, also for what its libraries need.
        runpath: Folders to look in only for its own needs.
    """

    loader: str | None
    needed: tuple[str, ...]
    rpath: str | None
    runpath: str | None


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def is_elf(data: bytes) -> bool:
    """Return whether this is (the beginning of) an ELF file."""
    return data.startswith(_MAGIC)


def read_elf(data: bytes) -> Elf:
    """Read a whole file's content.

    Raises:
        ValueError: It is not one that this program knows, or is damaged.
    """
    try:
        order = _ORDERS[data[5]]
        if not is_elf(data) or data[4] != _CLASS_64:
            raise ValueError("no 64-bit ELF file")
        segments = list(_segments(data, order))
        entries = [
            entry for s in segments if s.kind == _PT_DYNAMIC for entry in _dynamic(data, order, s)
        ]
        names = _offset(segments, next((v for k, v in entries if k == _DT_STRTAB), 0))
        return Elf(
            loader=next((_text(data, s.offset) for s in segments if s.kind == _PT_INTERP), None),
            needed=tuple(_text(data, names + v) for k, v in entries if k == _DT_NEEDED),
            rpath=next((_text(data, names + v) for k, v in entries if k == _DT_RPATH), None),
            runpath=next((_text(data, names + v) for k, v in entries if k == _DT_RUNPATH), None),
        )
    except (struct.error, IndexError, KeyError) as error:
        raise ValueError("a damaged ELF file") from error


def _segments(data: bytes, order: str) -> Iterator[_Segment]:
    (table,) = struct.unpack_from(f"{order}Q", data, 32)
    size, count = struct.unpack_from(f"{order}HH", data, 54)
    for number in range(count):
        at = table + number * size
        kind, _, offset, address = struct.unpack_from(f"{order}IIQQ", data, at)
        (length,) = struct.unpack_from(f"{order}Q", data, at + 32)
        yield _Segment(kind, offset, address, length)


def _dynamic(data: bytes, order: str, segment: _Segment) -> Iterator[tuple[int, int]]:
    for at in range(segment.offset, segment.offset + segment.size, 16):
        key, value = struct.unpack_from(f"{order}qQ", data, at)
        if key == 0:
            return
        yield key, value


def _offset(segments: list[_Segment], address: int) -> int:
    """Return where in the file an address of the running program comes from."""
    for s in segments:
        if s.kind == _PT_LOAD and s.address <= address < s.address + s.size:
            return address - s.address + s.offset
    return address


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


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
                if not is_elf(stream.read(_MAGIC_LENGTH)):
                    continue
            yield path, read_elf(path.read_bytes())


def _problems(tree: Path, prefix: str, path: Path, elf: Elf) -> Iterator[str]:
    library = f"{prefix}/lib"
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
