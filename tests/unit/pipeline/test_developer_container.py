"""The partition table of Flatcar's developer container."""

from __future__ import annotations

import bz2
import io
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import ProvisionError
from provision.pipeline import developer_container
from provision.pipeline.developer_container import Partition, partitions, root_partition

_SECTOR = 512
_EXT4 = b"\0" * 0x438 + b"\x53\xef"


def _disk(*found: tuple[str, bytes]) -> bytes:
    """A disk with a GPT and partitions of some content, each from a mebibyte of its own on."""
    entries, content = b"", b""
    first = 2048
    for name, data in found:
        sectors = max(1, -(-len(data) // _SECTOR))
        text = name.encode("utf-16-le").ljust(72, b"\0")
        entries += struct.pack(
            "<16s16sQQQ72s", b"k" * 16, b"u" * 16, first, first + sectors - 1, 0, text
        )
        content = content.ljust((first - 2048) * _SECTOR, b"\0") + data
        first += -(-sectors // 2048) * 2048
    header = struct.pack(
        "<8s4I4Q16sQ3I",
        *(b"EFI PART", 0x10000, 92, 0, 0, 1, 0, 34, 0, b"d" * 16, 2, 128, 128, 0),
    )
    table = b"\0" * _SECTOR + header.ljust(_SECTOR, b"\0") + entries.ljust(128 * 128, b"\0")
    padding = b"\0" * (-len(content) % _SECTOR)
    return table.ljust(2048 * _SECTOR, b"\0") + content + padding


def test_partitions_are_read() -> None:
    disk = _disk(("EFI-SYSTEM", b"a" * 600), ("ROOT", _EXT4))
    assert partitions(io.BytesIO(disk)) == [
        Partition("EFI-SYSTEM", 2048 * _SECTOR, 2 * _SECTOR),
        Partition("ROOT", 4096 * _SECTOR, 3 * _SECTOR),
    ]


def test_the_root_is_the_partition_of_that_name_else_the_largest() -> None:
    small, large = Partition("ROOT", 0, 1), Partition("USR-A", 0, 9)
    assert root_partition([small, large]) == small
    assert root_partition([Partition("", 0, 1), large]) == large
    with pytest.raises(ProvisionError, match="no partition"):
        root_partition([])


@given(st.binary(max_size=4096))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ProvisionError, match="no disk with a GPT"):
        partitions(io.BytesIO(data))


@given(st.integers(0, 100), st.binary(min_size=1, max_size=8))
def test_a_damaged_table_is_refused_or_read(at: int, noise: bytes) -> None:
    disk = bytearray(_disk(("ROOT", _EXT4)))
    disk[_SECTOR + at : _SECTOR + at + len(noise)] = noise
    with suppress(ProvisionError):
        partitions(io.BytesIO(bytes(disk)))


def test_the_root_is_cut_out(tmp_path: Path) -> None:
    root = _EXT4 + b"\0" * 3_000_000 + b"the end"
    packed = bz2.compress(_disk(("EFI-SYSTEM", b"a" * 600), ("ROOT", root)))
    target = tmp_path / "root.img"
    with bz2.open(io.BytesIO(packed)) as stream:
        developer_container._cut(stream, target)  # noqa: SLF001 - the whole of it takes an engine
    assert target.read_bytes().rstrip(b"\0") == root
    other = bz2.compress(_disk(("ROOT", b"XFSB" * 2000)))
    with (
        bz2.open(io.BytesIO(other)) as stream,
        pytest.raises(ProvisionError, match="no whole ext4"),
    ):
        developer_container._cut(stream, target)  # noqa: SLF001 - as above
