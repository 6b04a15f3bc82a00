"""Decompresses zstd with the distro's program: Python reads it from 3.14 on."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

from provision.run import HOSTILE_MEMORY, run

# A slow machine takes less for a driver.
_LIMIT_S = 900.0


def decompress(source: Path, target: Path, *, limit: int, why: str) -> None:
    """Write the content of a file; its memory (a window of 128 MiB) and its bytes are limited.

    Raises:
        OSError: ``EFBIG``: it has more bytes than the limit. ``ENOSPC``: the disk is full.
        ValueError: It is damaged, in zstd's words.
    """
    argv = ["zstd", "--decompress", "--quiet", "--force", "--memory=128MB"]
    argv += ["-o", str(target), str(source)]
    # It has no limit of its own, and some kB may become more than a disk holds.
    done = run(
        argv,
        why=why,
        check=False,
        timeout=_LIMIT_S,
        memory=HOSTILE_MEMORY,
        largest_file=limit,
    )
    code = 0
    if done.returncode == -signal.SIGXFSZ or "File too large" in done.stderr:
        code = errno.EFBIG
    elif done.returncode and not shutil.disk_usage(target.parent).free:
        code = errno.ENOSPC
    if code:
        raise OSError(code, os.strerror(code))
    if done.returncode:
        raise ValueError(done.stderr.strip())
