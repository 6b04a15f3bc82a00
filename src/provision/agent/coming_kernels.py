"""Kernels that are still to come: announced ones, and those that are being installed.

Nothing on the host shows an announced kernel, so the state records it, and garbage collection keeps
its artifacts.

systemd notices a new kernel when the first file of its packages is unpacked. The other files and
``modules.dep`` follow up to half a minute later.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from provision.files import in_root
from provision.host.kernels import Kernels, find_kernels, kernel_order, kernel_release
from provision.progress import Note, Progress, silent
from provision.run import beside, find_program
from provision.store.entries import linked_kernels
from provision.store.layout import Layout
from provision.store.locks import changing
from provision.store.state import DriverState, NewerStateError, load_state, update_state

# Files that package managers lock while they work: dpkg(1), rpm's lib/rpmlock.c.
_LOCKS = ("var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend", "var/lib/rpm/.rpm.lock")
# struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")
_STEP = 1.0
_LIMIT = 900.0
# After one package, the package manager may install the next.
_CALM_STEPS = 3
# logind answers where systemd has started it: https://www.freedesktop.org/wiki/Software/systemd/inhibit/
_LOGIND = Path("run/systemd/seats")


def announce(layout: Layout, coming: Iterable[str], root: Path) -> None:
    """Record announced kernels that already have an artifact of a driver.

    If a newer provision wrote the driver's state, nothing is recorded, and none of its artifacts is
    removed.

    Raises:
        OSError: The store can't be written.
    """
    releases = [release for release in coming if release in linked_kernels(layout)]
    if not releases:
        return
    with changing(layout):
        links = linked_kernels(layout)
        running = kernel_release(root) or ""

        def marked(state: DriverState) -> DriverState:
            for release in releases:
                if release in links:
                    known = state.of(release).model_copy(update={"announced": running})
                    state = state.updated(release, known)
            return state

        with suppress(NewerStateError):
            update_state(layout, marked)


def awaited(state: DriverState, kernels: Kernels) -> frozenset[str]:
    """Return the kernels that were announced and may still come. Pure.

    An installed kernel no longer needs its announcement. The announcement of a kernel that never
    came expires when a newer kernel runs than the announced one, and another than at the
    announcement.
    """
    running = kernels.running or ""
    return frozenset(
        release
        for release, known in state.kernels.items()
        if known.announced is not None
        and release not in kernels.bootable
        and (known.announced == running or kernel_order(running) < kernel_order(release))
    )


def settled(layout: Layout, kernels: Kernels) -> DriverState:
    """Return the state without announcements of kernels that came or that have expired."""
    state = load_state(layout)
    still = awaited(state, kernels)
    for release, known in state.kernels.items():
        if known.announced is not None and release not in still:
            state = state.updated(release, known.model_copy(update={"announced": None}))
    return state


def wait_for_kernel(
    root: Path = Path("/"),
    *,
    limit: float = _LIMIT,
    sleep: Callable[[float], None] = time.sleep,
    progress: Progress = silent,
) -> bool:
    """Wait until no package manager is running.

    A kernel's folder that is incomplete after that stays incomplete.

    Args:
        root: Root of the host.
        limit: Seconds to wait at most.
        sleep: Waits for seconds.
        progress: Receives a note about the wait.

    Returns:
        Whether no package manager runs; False: the limit was reached.
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
    progress(Note(f"'{_busy(root)}' is still locked after {limit:g} s; the run continues"))
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


@contextmanager
def shutdown_delayed(root: Path, why: str) -> Iterator[None]:
    """Delay a shutdown until the block ends, for as long as logind's configuration allows.

    The limit is ``InhibitDelayMaxSec`` (logind.conf(5)), 5 seconds by default: a build can delay a
    shutdown, but not prevent it. Without systemd, nothing is delayed.

    Args:
        root: Root of the running host.
        why: The reason, which systemd shows.
    """
    if not in_root(root, _LOGIND).is_dir() or find_program("systemd-inhibit") is None:
        yield
        return
    # cat ends when this process does, and with it the inhibitor.
    what = ("--what=shutdown", "--mode=delay", "--who=provision", f"--why={why}")
    with beside(["systemd-inhibit", *what, "cat"], why="delay a shutdown"):
        yield
