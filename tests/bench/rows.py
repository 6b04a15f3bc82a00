"""One row of the table, how it is shown, and what measures it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bench.scene import Scene

__all__ = ["Group", "Row", "as_document", "as_text"]

_MARKS = {True: "✓", False: "✗", None: " "}


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement against its target.

    Attributes:
        name: short, what `--only` takes.
        what: what was measured.
        value: the figure that the target is about, in `unit`.
        target: the most that it may be, in `unit`.
        unit: ``x`` for a ratio, else ``s``, ``ms`` or ``MB``.
        note: the measured figures behind it.
    """

    name: str
    what: str
    value: float
    target: float | None
    unit: str
    note: str

    @property
    def reached(self) -> bool | None:
        """Whether the target is met; None: the row is for information."""
        return None if self.target is None else self.value <= self.target


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are measured together, because their programs take turns.

    Attributes:
        names: the rows' names.
        measure: measures them; a machine that can't gets none.
    """

    names: tuple[str, ...]
    measure: Callable[[Scene], Iterable[Row]]


def as_document(row: Row) -> dict[str, Any]:
    """A row for `--json`."""
    return {**asdict(row), "reached": row.reached}


def as_text(row: Row) -> Text:
    """A row for people: a line with the figure, and one with what is behind it."""
    reach = "" if row.target is None else f"≤ {row.target:g} {row.unit}"
    figure = f"{row.value:.2f} {row.unit}"
    line = f"{_MARKS[row.reached]} {row.name:<15}{figure:>11} {reach:>10}  {row.what}"
    text = Text(line, style="red" if row.reached is False else "")
    return text.append(f"\n  {'':<15}{row.note}", style="dim")
