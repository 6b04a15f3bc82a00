"""One row of the table, how it is shown, and what measures it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.text import Text

from bench.scene import Scene

_MARKS = {True: "✓", False: "✗", None: " "}


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement against its target."""

    # Short, what `--only` takes.
    name: str
    # What was measured.
    what: str
    # The figure that the target is about, in `unit`.
    value: float
    # The most that it may be, in `unit`.
    target: float | None
    # ``x`` for a ratio, else ``s``, ``ms`` or ``MB``.
    unit: str
    # The measured figures behind it.
    note: str

    @property
    def reached(self) -> bool | None:
        """Whether the target is met; None: the row is for information."""
        return None if self.target is None else self.value <= self.target


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are measured together, because their programs take turns."""

    # The rows' names.
    names: tuple[str, ...]
    # Measures them; a machine that can't gets none.
    measure: Callable[[Scene], Iterable[Row]]


def as_text(row: Row) -> Text:
    """A row for people: a line with the figure, and one with what is behind it."""
    reach = "" if row.target is None else f"≤ {row.target:g} {row.unit}"
    figure = f"{row.value:.2f} {row.unit}"
    line = f"{_MARKS[row.reached]} {row.name:<15}{figure:>11} {reach:>10}  {row.what}"
    text = Text(line, style="red" if row.reached is False else "")
    return text.append(f"\n  {'':<15}{row.note}", style="dim")
