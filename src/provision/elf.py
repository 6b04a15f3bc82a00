"""Reads ELF files: class, machine, the dynamic section of programs, the sections of modules.

It is the only reader on a host. Scripts that run in a build container, where nothing of ours is
installed, ask ``readelf``. Source: System V ABI, chapters 4 and 5,
https://refspecs.linuxfoundation.org/elf/gabi4+/.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from mmap import mmap
from typing import IO, NamedTuple

# Bytes of a file that identify its class and machine: e_ident, e_type and e_machine.
HEAD_SIZE = 20
_MAGIC = b"\x7fELF"
# e_ident[EI_CLASS] and e_ident[EI_DATA].
_CLASS_64 = 2
_BITS = {1: 32, _CLASS_64: 64}
_ORDERS = {1: "<", 2: ">"}
# e_machine; the numbers are those of <elf.h>.
_MACHINES = {62: "x86_64", 183: "aarch64", 21: "ppc64le", 22: "s390x", 243: "riscv64"}
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_SONAME = 5, 14
_MAX_SEGMENTS = 256
_MAX_ENTRIES = 4096
_MAX_TEXT = 4096


class Elf(NamedTuple):
    """The class and the name of a program or library."""

    bits: int
    soname: str | None = None


class _Layout(NamedTuple):
    """Offsets and formats of an ELF class; formats as in ``struct``."""

    table: tuple[int, str]
    sizes: int
    segment: str
    dynamic: str


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


# Offsets of e_phoff and e_phentsize; p_type, p_offset, p_vaddr, p_filesz by class.
_LAYOUTS = {
    1: _Layout((28, "I"), 42, "IIIII", "iI"),
    2: _Layout((32, "Q"), 54, "IIQQQQ", "qQ"),
}
# Offset of e_shoff, and of e_shentsize, e_shnum, e_shstrndx, in a 64-bit header.
_SHOFF = 40
_SHENTSIZE = 58
_SECTION_SIZE = 64


def elf_bits(head: bytes) -> int | None:
    """Return the class of an ELF file by its head, 32 or 64; None: another kind of file."""
    return _BITS.get(head[4]) if len(head) > len(_MAGIC) and head.startswith(_MAGIC) else None


def elf_machine(head: bytes) -> str | None:
    """Return the architecture of a program by its head, as by ``uname -m``; None: not known."""
    if len(head) < HEAD_SIZE or not head.startswith(_MAGIC):
        return None
    (number,) = struct.unpack_from(f"{_ORDERS.get(head[5], '>')}H", head, 18)
    return _MACHINES.get(number)


def elf_section(data: bytes | mmap, name: bytes) -> bytes:
    """Return a section of a 64-bit ELF file; only its headers and the section itself are read.

    Raises:
        ValueError, struct.error, IndexError: It is no such file, or has no such section.
    """
    if data[:4] != _MAGIC:
        raise ValueError("not an ELF file")
    if data[4] != _CLASS_64:
        raise ValueError("not a 64-bit ELF file")
    order = _ORDERS.get(data[5], ">")
    (table,) = struct.unpack_from(f"{order}Q", data, _SHOFF)
    entry_size, count, names_index = struct.unpack_from(f"{order}3H", data, _SHENTSIZE)
    if entry_size < _SECTION_SIZE:
        raise ValueError("its section headers are too small")
    if table + count * entry_size > len(data):
        raise ValueError("its section headers lie behind the file's end")
    headers = [
        struct.unpack_from(f"{order}IIQQQQ", data, table + index * entry_size)
        for index in range(count)
    ]
    names_at = headers[names_index][4]
    for name_at, _kind, _flags, _address, offset, size in headers:
        start = names_at + name_at
        if data[start : start + len(name) + 1] == name + b"\0":
            if offset + size > len(data):
                raise ValueError(f"its {name.decode()} section lies behind the file's end")
            return data[offset : offset + size]
    raise ValueError(f"it has no {name.decode()} section")


def read_elf(stream: IO[bytes]) -> Elf | None:
    """Read an ELF file from a seekable stream; None if it is another kind of file.

    Raises:
        ValueError: The ELF file is damaged.
    """
    stream.seek(0)
    head = stream.read(64)
    if not head.startswith(_MAGIC):
        return None
    try:
        layout, order = _LAYOUTS[head[4]], _ORDERS[head[5]]
        segments = list(_segments(stream, head, layout, order))
        entries = [
            entry
            for segment in segments
            if segment.kind == _PT_DYNAMIC
            for entry in _dynamic(stream, segment, layout, order)
        ]
        return Elf(_BITS[head[4]], _soname(stream, segments, entries))
    except (struct.error, IndexError, KeyError, OverflowError, OSError) as error:
        raise ValueError("a damaged ELF file") from error


def _soname(
    stream: IO[bytes], segments: Sequence[_Segment], entries: list[tuple[int, int]]
) -> str | None:
    strings = next((value for key, value in entries if key == _DT_STRTAB), None)
    name = next((value for key, value in entries if key == _DT_SONAME), None)
    if strings is None or name is None:
        return None
    return _text(stream, _offset(segments, strings) + name)


def _segments(stream: IO[bytes], head: bytes, layout: _Layout, order: str) -> Iterator[_Segment]:
    (table,) = struct.unpack_from(order + layout.table[1], head, layout.table[0])
    size, count = struct.unpack_from(f"{order}HH", head, layout.sizes)
    for number in range(min(count, _MAX_SEGMENTS)):
        stream.seek(table + number * size)
        fields = struct.unpack(
            order + layout.segment, stream.read(struct.calcsize(order + layout.segment))
        )
        # Of 64 bits: type, flags, offset, vaddr, paddr, filesz; of 32: without the flags there.
        if len(fields) == len("IIQQQQ"):
            yield _Segment(fields[0], fields[2], fields[3], fields[5])
        else:
            yield _Segment(fields[0], fields[1], fields[2], fields[4])


def _dynamic(
    stream: IO[bytes], segment: _Segment, layout: _Layout, order: str
) -> Iterator[tuple[int, int]]:
    length = struct.calcsize(order + layout.dynamic)
    stream.seek(segment.offset)
    for _ in range(min(segment.size // length, _MAX_ENTRIES)):
        key, value = struct.unpack(order + layout.dynamic, stream.read(length))
        if key == 0:
            return
        yield key, value


def _offset(segments: Sequence[_Segment], address: int) -> int:
    for one in segments:
        if one.kind == _PT_LOAD and one.address <= address < one.address + one.size:
            return address - one.address + one.offset
    return address


def _text(stream: IO[bytes], at: int) -> str:
    try:
        stream.seek(at)
    except (OverflowError, OSError, ValueError) as error:
        raise ValueError("a damaged ELF file") from error
    text, end, _ = stream.read(_MAX_TEXT).partition(b"\0")
    if not end:
        raise ValueError("a damaged ELF file: its name has no end")
    try:
        return text.decode("ascii")
    except UnicodeDecodeError as error:
        raise ValueError("a damaged ELF file: its name is no text") from error
