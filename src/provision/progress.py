"""How a long operation reports to its caller what it is doing, without printing anything itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a line: a decision, a wait, a result."""

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
    """How far many alike things are that are done beside each other.

    Attributes:
        total: How many there are.
        done: How many ended in which way.
        running: What is being done now, a line each.
    """

    total: int
    done: Mapping[str, int] = field(default_factory=dict)
    running: tuple[str, ...] = ()


Event = Note | Step | Output | Transfer | Tally
Progress = Callable[[Event], None]


def silent(event: Event) -> None:
    """Drop an event: the progress of a caller that doesn't care."""
    del event
