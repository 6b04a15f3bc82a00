"""The locks of a host, and the order in which they are taken.

``building``, one a host: a process holds it for up to hours while it makes artifacts (``apply``,
``prepare``) or runs ``gc --images``. It only saves work: two agents don't build the same twice.

``switching``, one a host: a process holds it for seconds while it switches artifacts, loads or
unloads modules, removes artifacts or publishes the status.

``changing``, one a driver: a process holds it for moments while it reads the driver's part of the
store in order to write it (entries, links, state, managed files).

Locks are taken in this order only, and never those of two drivers at once. A build holds neither of
the last two, so nothing that switches waits for it. Commands that only look (``status``, ``plan``)
take no lock. Why: docs/decisions/08-agent.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from provision.errors import InUseError
from provision.files import LONGEST_WAIT_S, in_root, lock
from provision.progress import Note, report
from provision.store.layout import Layout

# Builds take up to hours; other work under a lock takes seconds, or minutes on a slow disk.
BUILD_SECONDS = LONGEST_WAIT_S
SWITCH_SECONDS = 600.0
# Shorter waits are not reported.
_PATIENCE_SECONDS = 1.0
_BUILDING, _SWITCHING, _CHANGING = range(3)
# Those of a host are not in the store: a look at a host without one leaves nothing behind.
_LOCKS = Path("run/provision")
_BUILD_LOCK = _LOCKS / "building.lock"
_SWITCH_LOCK = _LOCKS / "switching.lock"
UNITS_LOCK = _LOCKS / "units.lock"


class _Held(threading.local):
    """The ranks of the locks that a thread holds, and how often it took each, by path."""

    def __init__(self) -> None:
        self.ranks: dict[Path, int] = {}
        self.depths: dict[Path, int] = {}


_held = _Held()


@contextmanager
def building(root: Path) -> Iterator[bool]:
    """Keep other agents of a host from building; yield whether this process had to wait for one.

    After a wait, earlier observations of the host are outdated.
    """
    text = "Another provision is building on this host; waiting for it"
    with _taken(in_root(root, _BUILD_LOCK), _BUILDING, text, BUILD_SECONDS) as waited:
        yield waited


@contextmanager
def switching(root: Path, *, limit: float = SWITCH_SECONDS) -> Iterator[None]:
    """Hold a host's lock: no other process switches artifacts, loads modules or removes any."""
    text = "Another provision is at work on this host; waiting for it"
    with _taken(in_root(root, _SWITCH_LOCK), _SWITCHING, text, limit):
        yield


@contextmanager
def changing(layout: Layout) -> Iterator[None]:
    """Hold a driver's lock: no other process changes its part of the store."""
    text = f"Another process is installing {layout.driver}; waiting for it"
    with _taken(layout.lock, _CHANGING, text, SWITCH_SECONDS):
        yield


@contextmanager
def _taken(path: Path, rank: int, text: str, limit: float) -> Iterator[bool]:
    """Take a lock, unless this thread holds it already; yield whether that took a wait.

    A wait that is not short is reported by ``text``.
    """
    path = path.parent.resolve() / path.name
    if path in _held.depths:
        _held.depths[path] += 1
        try:
            yield False
        finally:
            _held.depths[path] -= 1
        return
    _check_order(path, rank)
    with ExitStack() as stack:
        patience = min(_PATIENCE_SECONDS, limit / 2)
        try:
            waited = stack.enter_context(lock(path, limit=patience))
        except InUseError:
            waited = True
            report(Note(text))
            stack.enter_context(lock(path, limit=limit - patience))
        _held.ranks[path], _held.depths[path] = rank, 1
        try:
            yield waited
        finally:
            del _held.ranks[path], _held.depths[path]


def _check_order(path: Path, rank: int) -> None:
    """Refuse an order of locks that could make two processes wait for each other."""
    if any(held >= rank for held in _held.ranks.values()):
        raise RuntimeError(f"'{path}' is locked out of order: {sorted(_held.ranks)} are held")
