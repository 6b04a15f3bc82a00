"""Reads the SONAME of a library, of 32 or 64 bits, without reading the library whole.

Source: System V ABI, chapters 4 and 5, https://refspecs.linuxfoundation.org/elf/gabi4+/.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

_MAGIC = b"\x7fELF"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_SONAME = 5, 14
_MAX_SEGMENTS = 256
_MAX_ENTRIES = 4096
_MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class Library:
    """What a library says of itself: 32 or 64, and its SONAME, if it has one."""

    bits: int
    soname: str | None


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where an ELF class keeps what is read here; formats as in ``struct``."""

    table: tuple[int, str]
    sizes: int
    segment: str
    dynamic: str


# Offsets of e_phoff and e_phentsize; p_type, p_offset, p_vaddr, p_filesz by class.
_LAYOUTS = {
    1: _Layout((28, "I"), 42, "IIIII", "iI"),
    2: _Layout((32, "Q"), 54, "IIQQQQ", "qQ"),
}


def read_library(stream: IO[bytes]) -> Library | None:
    """Read a library from a stream that can seek; None: it is no ELF file.

    Raises:
        ValueError: It is a damaged one.
    """
    stream.seek(0)
    head = stream.read(64)
    if not head.startswith(_MAGIC):
        return None
    try:
        layout, order = _LAYOUTS[head[4]], {1: "<", 2: ">"}[head[5]]
        segments = list(_segments(stream, head, layout, order))
        entries = [
            entry
            for kind, offset, _address, size in segments
            if kind == _PT_DYNAMIC
            for entry in _dynamic(stream, offset, size, layout, order)
        ]
    except (struct.error, IndexError, KeyError, OverflowError, OSError) as error:
        raise ValueError("a damaged ELF file") from error
    values = dict(entries)
    bits = 32 if head[4] == 1 else 64
    if _DT_SONAME not in values or _DT_STRTAB not in values:
        return Library(bits, None)
    return Library(bits, _text(stream, _offset(segments, values[_DT_STRTAB]) + values[_DT_SONAME]))


def _segments(
    stream: IO[bytes], head: bytes, layout: _Layout, order: str
) -> Iterator[tuple[int, int, int, int]]:
    (table,) = struct.unpack_from(order + layout.table[1], head, layout.table[0])
    size, count = struct.unpack_from(f"{order}HH", head, layout.sizes)
    for number in range(min(count, _MAX_SEGMENTS)):
        stream.seek(table + number * size)
        fields = struct.unpack(
            order + layout.segment, stream.read(struct.calcsize(order + layout.segment))
        )
        # Of 64 bits: type, flags, offset, vaddr, paddr, filesz; of 32: without the flags there.
        kind, offset, address, length = (
            (fields[0], fields[2], fields[3], fields[5])
            if len(fields) == len("IIQQQQ")
            else (fields[0], fields[1], fields[2], fields[4])
        )
        yield kind, offset, address, length


def _dynamic(
    stream: IO[bytes], offset: int, size: int, layout: _Layout, order: str
) -> Iterator[tuple[int, int]]:
    length = struct.calcsize(order + layout.dynamic)
    stream.seek(offset)
    for _ in range(min(size // length, _MAX_ENTRIES)):
        key, value = struct.unpack(order + layout.dynamic, stream.read(length))
        if key == 0:
            return
        yield key, value


def _offset(segments: list[tuple[int, int, int, int]], address: int) -> int:
    """Return where in the file an address of the running program comes from."""
    for kind, offset, start, size in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return address - start + offset
    return address


def _text(stream: IO[bytes], at: int) -> str:
    try:
        stream.seek(at)
    except (OverflowError, OSError, ValueError) as error:
        raise ValueError("a damaged ELF file") from error
    text, end, _ = stream.read(_MAX_NAME).partition(b"\0")
    if not end:
        raise ValueError("a damaged ELF file: its name has no end")
    try:
        return text.decode("ascii")
    except UnicodeDecodeError as error:
        raise ValueError("a damaged ELF file: its name is no text") from error
