"""Reads of an ELF file what it asks for at run time.

Source: the ELF-64 object file format, https://refspecs.linuxfoundation.org/elf/gabi4+/ (chapters 4
and 5); 64-bit files alone, which is what all
supported architectures have.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = b"\x7fELF"
_CLASS_64 = 2
_ORDERS = {1: "<", 2: ">"}
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 1, 5, 15, 29


@dataclass(frozen=True, slots=True)
class Elf:
    """What a program or library asks for.

    Attributes:
        loader: The program interpreter; None: it has none.
        needed: Names of libraries.
        rpath: Folders to look in, also for what its libraries need.
        runpath: Folders to look in for its own needs alone.
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
        ValueError: It is none that this program knows, or is damaged.
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
