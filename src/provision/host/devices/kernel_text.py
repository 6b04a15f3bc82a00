"""Texts and numbers that the kernel and its drivers show in /proc and sysfs.

Below a root that is another host's these are files like others, and may be anything.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

# Sixteen pages: sysfs shows one, and NVIDIA's driver a few lines.
LARGEST = 64 << 10
# Linux keeps twenty bits for the minor number of a node: MINORBITS in linux/kdev_t.h.
LARGEST_MINOR = (1 << 20) - 1
_NUMBER = re.compile(r"[0-9]{1,7}", re.ASCII)


def kernel_text(path: Path) -> str | None:
    """Return what a file says; None: it can't be read, or is nothing that the kernel shows.

    That is what is no regular file, such as a FIFO, which would hold the reader up, and what is
    larger than ``LARGEST`` bytes.

    Args:
        path: The file, in a root already (``provision.rootfs.in_root``).
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return None
            content = stream.read(LARGEST + 1)
    except OSError:
        return None
    return None if len(content) > LARGEST else content.decode(errors="replace")


def minor_number(text: str) -> int | None:
    """Return the minor number of a node that a text says; None: it says none. Pure."""
    match = _NUMBER.fullmatch(text.strip())
    number = None if match is None else int(match[0])
    return None if number is None or number > LARGEST_MINOR else number
