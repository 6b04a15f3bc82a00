"""Waits until a new kernel is complete.

systemd notices a new kernel when the first file of its packages is unpacked, half a minute before
the rest of them and ``modules.dep`` are there.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from provision.host.kernels import find_kernels
from provision.progress import Note, Progress, silent
from provision.rootfs import in_root

# Files that package managers lock as long as they work: dpkg(1), rpm's lib/rpmlock.c.
_LOCKS = ("var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend", "var/lib/rpm/.rpm.lock")
# struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")
_STEP = 1.0
_LIMIT = 900.0
# A package manager that is done with one package may be about to take the next.
_CALM_STEPS = 3


def wait_for_kernel(
    root: Path = Path("/"),
    *,
    limit: float = _LIMIT,
    sleep: Callable[[float], None] = time.sleep,
    progress: Progress = silent,
) -> bool:
    """Wait until no package manager is at work.

    A folder of a kernel that is incomplete then stays so: whatever was to come did.

    Args:
        root: Root of the host.
        limit: Seconds to wait at most.
        sleep: Waits.
        progress: Told about the wait.

    Returns:
        Whether all is calm; False: the limit was reached.
    """
    waited, calm = 0.0, 0
    while waited < limit:
        busy = _busy(root)
        if waited == 0.0:
            if busy is None and not find_kernels(root, ask=lambda _argv: None).incomplete:
                return True
            progress(Note("Waiting for the package manager to finish"))
        calm = 0 if busy else calm + 1
        if calm >= _CALM_STEPS:
            return True
        sleep(_STEP)
        waited += _STEP
    progress(Note(f"'{_busy(root)}' is still locked after {limit:g} s; going on"))
    return False


def is_calm(root: Path) -> bool:
    """Return whether no package manager is at work at this moment."""
    return _busy(root) is None


def _busy(root: Path) -> Path | None:
    """Return the lock that somebody holds; None if nobody holds any."""
    return next((path for name in _LOCKS if _is_locked(path := in_root(root, name))), None)


def _is_locked(path: Path) -> bool:
    """Ask whether another process holds a lock, without taking it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        wish = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, wish)
    finally:
        os.close(handle)
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK
