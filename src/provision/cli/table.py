"""Tables on standard output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from provision.cli.output import for_people


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; ``columns`` whose name ends in ``>`` are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(
            column.removesuffix(">"), justify="right" if column.endswith(">") else "left"
        )
    for row in rows:
        table.add_row(*(for_people(value) for value in row))
    # Off a terminal, nothing is cut: who reads a pipe wants whole names.
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=500)
    console.print(table)
