"""The kernel of a host and the architecture that it runs on."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

from provision.files import glob_in_root, in_root

# e_machine: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html, numbers in <elf.h>.
_MACHINES = {62: "x86_64", 183: "aarch64", 21: "ppc64le", 22: "s390x", 243: "riscv64"}
# Programs that every host has, whatever its size.
_PROGRAMS = ("usr/lib/systemd/systemd", "lib/systemd/systemd", "usr/bin/env", "bin/sh")
_ELF_HEAD = 20
_LITTLE_ENDIAN = 1


def kernel_release(root: Path) -> str | None:
    """Return the running kernel's release, as the root's own /proc says.

    A root that isn't running (a mounted disk, an unpacked image) has no /proc: then it is the
    newest kernel under its ``lib/modules`` that is complete, which a boot of it would take. Package
    managers make a kernel's folder long before they are done; ``modules.dep`` comes last.
    """
    running = in_root(root, "proc/sys/kernel/osrelease")
    if running.is_file():
        return running.read_text().strip()
    patterns = ("usr/lib/modules/*/modules.dep", "lib/modules/*/modules.dep")
    complete = {path.parent.name for p in patterns for path in glob_in_root(root, p)}
    return max(complete, key=kernel_order, default=None)


def kernel_order(release: str) -> list[tuple[int, int, str]]:
    """Return a sort key of kernel releases: numbers by value, text by alphabet, ``~`` first."""
    parts = re.findall(r"\d+|~|[^\d~]+", release)
    return [
        (2, int(part), "") if part.isdigit() else (0 if part == "~" else 1, 0, part)
        for part in parts
    ]


def machine(root: Path) -> str:
    """Return the architecture as ``uname -m`` prints it.

    Another root's is that of its programs; a root without programs is taken to be of this machine.
    """
    own = os.uname().machine
    if root == Path("/"):
        return own
    paths = [path for name in _PROGRAMS if (path := in_root(root, name)).is_file()]
    return next((found for path in paths if (found := elf_machine(_head(path)))), own)


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(_ELF_HEAD)


def elf_machine(head: bytes) -> str | None:
    """Return the architecture that a program is for; None if it is no program, or of another kind.

    Args:
        head: The first 20 bytes of its file, or more.
    """
    if len(head) < _ELF_HEAD or head[:4] != b"\x7fELF":
        return None
    order = "<" if head[5] == _LITTLE_ENDIAN else ">"
    (number,) = struct.unpack_from(f"{order}H", head, 18)
    return _MACHINES.get(number)
