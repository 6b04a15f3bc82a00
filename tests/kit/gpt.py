"""Disks with a GPT and ext4 partitions, by sfdisk and mke2fs, made without mounting anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kit.process import run

_MIB = 1 << 20


def partitioned_disk(disk: Path, partitions: Sequence[tuple[str, int, Path | None]]) -> None:
    """Write a raw, sparse disk of partitions: name, size in MiB, and the folder that it holds."""
    with disk.open("wb") as stream:
        stream.truncate((sum(size for _name, size, _folder in partitions) + 2) * _MIB)
    table = [f"size={size}M,name={name}" for name, size, _folder in partitions]
    run(["/sbin/sfdisk", "--quiet", disk], stdin="\n".join(["label: gpt", *table, ""]))
    begin = 1
    for _name, size, folder in partitions:
        if folder is not None:
            options = ["-d", str(folder), "-E", f"offset={begin * _MIB}"]
            # The K matters: a bare number counts blocks.
            run(["/sbin/mke2fs", "-q", "-t", "ext4", *options, disk, f"{size * 1024}K"])
        begin += size
