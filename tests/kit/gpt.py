"""Disks with a GPT and ext4 partitions, made without mounting anything.

Source: https://uefi.org/specs/UEFI/2.10/05_GUID_Partition_Table_Format.html
"""

from __future__ import annotations

import struct
import uuid
import zlib
from typing import TYPE_CHECKING

from kit.process import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["partitioned_disk"]

_SECTOR = 512
_MIB = 1 << 20
_ENTRIES = 128
_ENTRY_SIZE = 128
_TABLE_SECTORS = _ENTRIES * _ENTRY_SIZE // _SECTOR
_HEADER_SIZE = 92
# A Linux file system; its first three fields are stored with their lowest byte first.
_LINUX = uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4").bytes_le


def partitioned_disk(disk: Path, partitions: Sequence[tuple[str, int, Path | None]]) -> None:
    """Write a raw, sparse disk.

    Args:
        disk: The file.
        partitions: Name, size in MiB, and the folder that it holds; None: it stays empty.
    """
    begins, at = [], 1
    for _name, size, _folder in partitions:
        begins.append(at)
        at += size
    sectors = (at + 1) * _MIB // _SECTOR
    entries = b""
    for (name, size, _folder), begin in zip(partitions, begins, strict=True):
        first, last = begin * _MIB // _SECTOR, (begin + size) * _MIB // _SECTOR - 1
        text = name.encode("utf-16-le").ljust(72, b"\0")
        entries += struct.pack("<16s16sQQQ72s", _LINUX, uuid.uuid4().bytes, first, last, 0, text)
    entries = entries.ljust(_ENTRIES * _ENTRY_SIZE, b"\0")
    with disk.open("wb") as stream:
        stream.truncate(sectors * _SECTOR)
        stream.write(_protective(sectors))
        stream.write(_header(entries, sectors, at=1, other=sectors - 1, table=2))
        stream.write(entries)
        stream.seek((sectors - 1 - _TABLE_SECTORS) * _SECTOR)
        stream.write(entries)
        table = sectors - 1 - _TABLE_SECTORS
        stream.write(_header(entries, sectors, at=sectors - 1, other=1, table=table))
    for (_name, size, folder), begin in zip(partitions, begins, strict=True):
        if folder is not None:
            options = ["-d", str(folder), "-E", f"offset={begin * _MIB}"]
            # The K matters: a bare number counts blocks.
            run(["/sbin/mke2fs", "-q", "-t", "ext4", *options, disk, f"{size * 1024}K"])


def _protective(sectors: int) -> bytes:
    """The MBR that keeps other programs from taking the disk for an empty one."""
    no_chs = b"\xff\xff\xff"
    entry = struct.pack("<B3sB3sII", 0, b"\x00\x02\x00", 0xEE, no_chs, 1, sectors - 1)
    return bytes(446) + entry + bytes(3 * 16) + b"\x55\xaa"


def _header(entries: bytes, sectors: int, *, at: int, other: int, table: int) -> bytes:
    guid = uuid.uuid5(uuid.NAMESPACE_OID, str(sectors)).bytes

    def packed(checksum: int) -> bytes:
        fixed = (b"EFI PART", 0x10000, _HEADER_SIZE, checksum, 0, at, other)
        usable = (2 + _TABLE_SECTORS, sectors - 2 - _TABLE_SECTORS)
        rest = (guid, table, _ENTRIES, _ENTRY_SIZE, zlib.crc32(entries))
        return struct.pack("<8s4I4Q16sQ3I", *fixed, *usable, *rest)

    return packed(zlib.crc32(packed(0))).ljust(_SECTOR, b"\0")
