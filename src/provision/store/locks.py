"""The locks of a host, and the order in which they are taken.

``building``, one a host: a process holds it for up to hours while it makes artifacts (``apply``,
``prepare``) or runs ``gc --images``. It only saves work: two agents don't build the same twice.

``switching``, one a host: a process holds it for seconds while it switches artifacts, loads or
unloads modules, removes artifacts or publishes the status.

``changing``, one a driver: a process holds it for moments while it reads the driver's part of the
store in order to write it (entries, links, state, managed files).

Locks are taken in this order only, and never those of two drivers at once. A build holds neither of
the last two, so nothing that switches waits for it. Commands that only look (``status``, ``plan``)
take no lock. Why: docs/decisions/19-agent.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from provision.errors import InUseError
from provision.files import LONGEST_WAIT_S, in_root, lock
from provision.host.folders import STORE
from provision.progress import Note, Progress, silent
from provision.store.layout import Layout

# Builds take up to hours; other work under a lock takes seconds, or minutes on a slow disk.
BUILD_SECONDS = LONGEST_WAIT_S
SWITCH_SECONDS = 600.0
# Shorter waits are not reported.
_PATIENCE_SECONDS = 1.0
_BUILDING, _SWITCHING, _CHANGING = range(3)
_BUILD_LOCK = Path("run/provision/building.lock")


class _Held(threading.local):
    """The ranks of the locks that a thread holds, and how often it took each, by path."""

    def __init__(self) -> None:
        self.ranks: dict[Path, int] = {}
        self.depths: dict[Path, int] = {}


_held = _Held()


class _Waiting:
    """How a lock is waited for.

    Args:
        progress: Receives a note of a wait that is not short.
        text: The note's text.
        limit: The longest wait, in seconds.
        on_wait: Called before any wait, however short.
    """

    def __init__(
        self,
        progress: Progress,
        text: str,
        limit: float,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self.progress, self.text, self.limit, self.on_wait = progress, text, limit, on_wait

    def enter(self, stack: ExitStack, path: Path) -> None:
        """Take a lock until a stack is unwound.

        Raises:
            InUseError: Another process held it for longer than the limit.
        """
        patience = min(_PATIENCE_SECONDS, self.limit / 2)
        try:
            stack.enter_context(lock(path, on_wait=self.on_wait, limit=patience))
        except InUseError:
            self.progress(Note(self.text))
        else:
            return
        stack.enter_context(lock(path, limit=self.limit - patience))


@contextmanager
def building(root: Path, progress: Progress = silent) -> Iterator[bool]:
    """Keep other agents of a host from building; yield whether this process had to wait for one.

    After a wait, earlier observations of the host are outdated.

    Raises:
        InUseError: Another agent builds for longer than a build may take.
        OSError: The lock file can't be made.
    """
    waited: list[bool] = []
    text = "Another provision is building on this host; waiting for it"
    waiting = _Waiting(progress, text, BUILD_SECONDS, on_wait=lambda: waited.append(True))
    with _taken(in_root(root, _BUILD_LOCK), _BUILDING, waiting):
        yield bool(waited)


@contextmanager
def switching(
    root: Path, progress: Progress = silent, *, limit: float = SWITCH_SECONDS
) -> Iterator[None]:
    """Hold a host's lock: no other process switches artifacts, loads modules or removes any.

    Raises:
        InUseError: Another process holds it for longer than ``limit`` seconds.
        OSError: The store can't be written.
    """
    text = "Another provision is at work on this host; waiting for it"
    with _taken(in_root(root, STORE / ".lock"), _SWITCHING, _Waiting(progress, text, limit)):
        yield


@contextmanager
def changing(
    layout: Layout, progress: Progress = silent, *, limit: float = SWITCH_SECONDS
) -> Iterator[None]:
    """Hold a driver's lock: no other process changes its part of the store.

    Raises:
        InUseError: Another process holds it for longer than ``limit`` seconds.
        OSError: The store can't be written.
    """
    text = f"Another process is installing {layout.driver}; waiting for it"
    with _taken(layout.lock, _CHANGING, _Waiting(progress, text, limit)):
        yield


@contextmanager
def _taken(path: Path, rank: int, waiting: _Waiting) -> Iterator[None]:
    """Take a lock, unless this thread holds it already."""
    path = path.parent.resolve() / path.name
    if path in _held.depths:
        _held.depths[path] += 1
        try:
            yield
        finally:
            _held.depths[path] -= 1
        return
    _check_order(path, rank)
    with ExitStack() as stack:
        waiting.enter(stack, path)
        _held.ranks[path], _held.depths[path] = rank, 1
        try:
            yield
        finally:
            del _held.ranks[path], _held.depths[path]


def _check_order(path: Path, rank: int) -> None:
    """Refuse an order of locks that could make two processes wait for each other.

    Raises:
        RuntimeError: This thread holds a lock of the same or a later rank: a defect.
    """
    if any(held >= rank for held in _held.ranks.values()):
        raise RuntimeError(f"'{path}' is locked out of order: {sorted(_held.ranks)} are held")
