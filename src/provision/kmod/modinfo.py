"""Reads what a kernel module says about itself, without running ``modinfo``.

A module is a relocatable ELF file; its ``.modinfo`` section holds ``key=value`` strings, each
ended by a zero byte, and a note holds the identity of the build. Sources: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.sheader.html,
include/linux/moduleparam.h of the kernel.
"""

from __future__ import annotations

import gzip
import lzma
import struct
import zlib
from mmap import ACCESS_READ, mmap
from pathlib import Path

from provision.errors import ProvisionError

# What reading bytes that are no module may raise.
UNREADABLE = (
    struct.error,
    IndexError,
    ValueError,
    EOFError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
)
_MAGIC = b"\x7fELF"
_CLASS_64 = 2
_MODINFO = b".modinfo"
_BUILD_ID = b".note.gnu.build-id"
# Offset of e_shoff, and of e_shentsize, e_shnum, e_shstrndx, in a 64-bit header.
_SHOFF = 40
_SHENTSIZE = 58
_HEADER_SIZE = 64
_SECTION_SIZE = 64


def read_modinfo(path: Path) -> dict[str, list[str]]:
    """Return the values of each key of a module file; compressed files are read too.

    Raises:
        ProvisionError: It is no kernel module, or compressed in a way that Python can't read.
        OSError: It can't be read.
    """
    try:
        return parse_modinfo(_content(path))
    except UNREADABLE as error:
        raise ProvisionError(f"'{path}' is no kernel module: {error}") from error


def parse_modinfo(data: bytes | mmap) -> dict[str, list[str]]:
    """Return the values of each key of a module's bytes.

    Raises:
        UNREADABLE: They are none of a 64-bit ELF file with a ``.modinfo`` section.
    """
    values: dict[str, list[str]] = {}
    for entry in _section(data, _MODINFO).split(b"\0"):
        key, separator, value = entry.partition(b"=")
        if separator:
            values.setdefault(key.decode("ascii", "replace"), []).append(
                value.decode("utf-8", "replace")
            )
    return values


def read_identity(path: Path) -> tuple[bytes | None, dict[str, list[str]]]:
    """Return the build-id note of an uncompressed module file, if it has one, and its modinfo.

    Only the parts that hold them are read: modules of 60 MB are not rare.

    Raises:
        ProvisionError: It is no kernel module.
        OSError: It can't be read.
    """
    try:
        with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            info = parse_modinfo(data)
            try:
                return _section(data, _BUILD_ID), info
            except ValueError:
                return None, info
    except UNREADABLE as error:
        raise ProvisionError(f"'{path}' is no kernel module: {error}") from error


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix != ".ko":
        raise ProvisionError(f"'{path}' is compressed in a way that can't be read here.")
    return data


def _section(data: bytes | mmap, wanted: bytes) -> bytes:
    if data[:4] != _MAGIC:
        raise ValueError("not an ELF file")
    if data[4] != _CLASS_64:
        raise ValueError("not a 64-bit ELF file")
    order = "<" if data[5] == 1 else ">"
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
    for name, _kind, _flags, _address, offset, size in headers:
        start = names_at + name
        if data[start : start + len(wanted) + 1] == wanted + b"\0":
            if offset + size > len(data):
                raise ValueError(f"its {wanted.decode()} section lies behind the file's end")
            return data[offset : offset + size]
    raise ValueError(f"it has no {wanted.decode()} section")
