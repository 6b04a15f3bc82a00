"""Waits for package managers, which install kernels in several steps.

systemd notices a new kernel when the first file of its packages is unpacked. The other files and
``modules.dep`` follow up to half a minute later.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from provision.files import in_root
from provision.host.kernels import find_kernels
from provision.progress import Note, report

# Files that package managers lock while they work: dpkg(1), rpm's lib/rpmlock.c.
_LOCKS = ("var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend", "var/lib/rpm/.rpm.lock")
# struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")
_STEP = 1.0
_LIMIT = 900.0
# After one package, the package manager may install the next.
_CALM_STEPS = 3


def wait_for_kernel(
    root: Path, *, limit: float = _LIMIT, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Wait until no package manager is running.

    A kernel's folder that is incomplete after that stays incomplete.

    Returns:
        Whether no package manager runs; False: ``limit`` seconds are over.
    """
    waited, calm = 0.0, 0
    while waited < limit:
        busy = _busy(root)
        if waited == 0.0:
            if busy is None and not find_kernels(root, ask=lambda _argv: None).incomplete:
                return True
            report(Note("Waiting for the package manager to finish"))
        calm = 0 if busy else calm + 1
        if calm >= _CALM_STEPS:
            return True
        sleep(_STEP)
        waited += _STEP
    report(Note(f"'{_busy(root)}' is still locked after {limit:g} s; the run continues"))
    return False


def is_calm(root: Path) -> bool:
    """Return whether no package manager is running."""
    return _busy(root) is None


def _busy(root: Path) -> Path | None:
    """Return a lock that a package manager holds; None if all are free."""
    return next((path for name in _LOCKS if _is_locked(path := in_root(root, name))), None)


def _is_locked(path: Path) -> bool:
    """Return whether another process holds a lock, without taking the lock."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, asked)
    finally:
        os.close(handle)
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK
