"""Events by which long operations report their progress to callers, without printing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Note:
    """A remark worth a line: a decision, a wait, a result."""

    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """The next of several steps begins; ``number`` counts from one."""

    number: int
    total: int
    text: str


@dataclass(frozen=True, slots=True)
class Output:
    """A line that a program of the current step printed."""

    text: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes moved so far; ``total`` is None while it is not known."""

    what: str
    done: int
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """The state of many similar tasks that run in parallel."""

    total: int
    done: Mapping[str, int] = field(default_factory=dict)
    running: tuple[str, ...] = ()


Event = Note | Step | Output | Transfer | Tally
Progress = Callable[[Event], None]


def silent(event: Event) -> None:
    """Ignore an event: for callers that need no progress."""
    del event
