"""One row of the table, and how it is shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

__all__ = ["Row", "as_documents", "as_table"]


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement against its target.

    Attributes:
        what: what was measured.
        value: the figure that the target is about, in `unit`.
        target: the most that it may be, in `unit`.
        unit: ``x`` for a ratio, else ``s``, ``ms`` or ``MB``.
        note: the measured figures behind it.
    """

    what: str
    value: float
    target: float | None
    unit: str
    note: str

    @property
    def reached(self) -> bool | None:
        """Whether the target is met; None: the row is for information."""
        return None if self.target is None else self.value <= self.target


def as_documents(rows: list[Row]) -> list[dict[str, Any]]:
    """The rows for `--json`."""
    return [{**asdict(row), "reached": row.reached} for row in rows]


def as_table(rows: list[Row]) -> Table:
    """The rows for people."""
    table = Table(title="Speed and size, measured in this run", title_justify="left")
    for name in ("what", "reach", "measured", "", "how"):
        table.add_column(name, justify="right" if name in {"reach", "measured"} else "left")
    for row in rows:
        reach = "" if row.target is None else f"≤ {row.target:g} {row.unit}"
        mark = {True: "✓", False: "✗", None: ""}[row.reached]
        style = "red" if row.reached is False else None
        table.add_row(row.what, reach, f"{row.value:.2f} {row.unit}", mark, row.note, style=style)
    return table
