"""Events by which long operations report their progress, to whom they do not know.

As with logs, no function is given who listens. A new thread has a listener only in a copy of the
context (``contextvars.copy_context``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Note(NamedTuple):
    """A remark worth a line: a decision, a wait, a result."""

    text: str


class Step(NamedTuple):
    """The next of several steps begins; ``number`` counts from one."""

    number: int
    total: int
    text: str


class Output(NamedTuple):
    """A line that a program of the current step printed."""

    text: str


class Transfer(NamedTuple):
    """Bytes moved so far; ``total`` is None while it is not known."""

    what: str
    done: int
    total: int | None = None


Event = Note | Step | Output | Transfer
Listener = Callable[[Event], None]


def _ignore(event: Event) -> None:
    del event


_listener: ContextVar[Listener] = ContextVar("listener", default=_ignore)


def report(event: Event) -> None:
    """Tell the listener of an event."""
    _listener.get()(event)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have events reported to another listener until the block ends."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def current_listener() -> Listener:
    """Return the listener, for one that passes events on to it."""
    return _listener.get()


def short(said: str, width: int) -> str:
    """Return a text as one line of limited width."""
    one_line = " ".join(said.split())
    return one_line if len(one_line) <= width else one_line[: width - 1] + "…"
