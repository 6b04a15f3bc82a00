"""The report of a compatibility matrix: a grid of drivers and kernels, and its HTML page.

The page needs no server, no network and no other file. Its content comes from builds and hosts, so
all of it is escaped. Its policy forbids loading files and running scripts other than its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import provision
from provision.distros.archive import version_key
from provision.errors import NotFoundError
from provision.fleet.matrix.cells import Cell, Column, Row
from provision.fleet.matrix.results import Result, read_result
from provision.host.kernels import kernel_order
from provision.store.state import DOES_NOT_LOAD

NOT_BUILT = "not-built"
# A symbol and words beside the colour, for print and for readers who see no colours.
LOOKS = {
    "built": ("✓", "built"),
    "loads": ("✔", "built, and its kernel loads it"),
    "failed": ("✗", "failed"),
    "not-supported": ("⊘", "not supported"),
    NOT_BUILT: ("·", "not built yet"),
}


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """A matrix as a grid."""

    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    # Results by cell; a cell without one was not built yet.
    results: Mapping[Cell, Result]

    def result(self, row: Row, column: Column) -> Result | None:
        """Return the result of a cell; None if it was not built yet."""
        return self.results.get(Cell(row, column))

    def state(self, row: Row, column: Column) -> str:
        """Return the state of a cell: one that ``LOOKS`` has."""
        result = self.result(row, column)
        if result is None:
            return NOT_BUILT
        return "loads" if result.is_tried else result.state

    @property
    def counts(self) -> dict[str, int]:
        """The number of cells by state; every state is included."""
        found = Counter(self.state(row, column) for row in self.rows for column in self.columns)
        return {state: found[state] for state in LOOKS}

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        return {
            "counts": self.counts,
            "cells": [
                self._cell(Cell(row, column)) for column in self.columns for row in self.rows
            ],
        }

    def _cell(self, cell: Cell) -> dict[str, Any]:
        result = self.results.get(cell)
        if result is None:
            return {**cell.members(), "state": NOT_BUILT}
        return result.model_dump(mode="json", by_alias=True)


def report_of_cells(cells: Iterable[Cell], folder: Path) -> MatrixReport:
    """Return the report of cells with their results."""
    listed = list(cells)
    found = {cell: result for cell in listed if (result := read_result(folder, cell))}
    rows = tuple(dict.fromkeys(cell.row for cell in listed))
    return MatrixReport(rows, tuple(dict.fromkeys(cell.column for cell in listed)), found)


def report_of_results(results: Iterable[Result]) -> MatrixReport:
    """Return the report of all results: the newest version and kernel first."""
    known = {result.cell: result for result in results}
    if not known:
        raise NotFoundError(
            "The matrix has no results.",
            resolution="Build cells: provision matrix --drivers all --build",
        )
    rows = sorted({c.row for c in known}, key=lambda row: version_key(row.version), reverse=True)
    columns = sorted(
        {c.column for c in known}, key=lambda one: kernel_order(one.kernel), reverse=True
    )
    return MatrixReport(
        tuple(sorted(rows, key=lambda row: row.driver)),
        tuple(sorted(columns, key=lambda column: column.distro)),
        known,
    )


_TEMPLATE = "matrix/page.html.j2"
_STYLE = "matrix/page.css"
_SCRIPTS = ("page/shared.js", "matrix/page.js")
_REASONS = {
    "compile": "does not compile",
    "build": "a step of the build failed",
    "missing": "something is missing",
    DOES_NOT_LOAD: "the kernel does not take it",
    "failed": "failed",
}


def render_page(report: MatrixReport, templates: Path, *, time: float) -> str:
    """Return the page of a report; ``time`` is the Unix time of the page."""
    style = (templates / _STYLE).read_text()
    script = "".join((templates / one).read_text() for one in _SCRIPTS)
    template = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(_TEMPLATE)
    return template.render(
        style=Markup(style),  # noqa: S704 - our own files, not what a build or a host says
        script=Markup(script),  # noqa: S704 - the same
        policy=_policy(style, script),
        made=_shown_time(time),
        version=provision.__version__,
        counts=[(state, *LOOKS[state], count) for state, count in report.counts.items()],
        # Each with its number of kernels, in the order of the columns.
        distros=list(Counter(column.distro for column in report.columns).items()),
        columns=report.columns,
        drivers=list(dict.fromkeys(row.driver for row in report.rows)),
        rows=[
            {"row": row, "cells": [_cell(report, row, column) for column in report.columns]}
            for row in report.rows
        ],
        details=[
            _detail(result)
            for column in report.columns
            for row in report.rows
            if (result := report.result(row, column))
        ],
    )


def _cell(report: MatrixReport, row: Row, column: Column) -> dict[str, Any]:
    state = report.state(row, column)
    symbol, words = LOOKS[state]
    result = report.result(row, column)
    return {
        "id": _identity(Cell(row, column)) if result else None,
        "state": state,
        "symbol": symbol,
        "words": words,
        "column": column,
        "hint": result.cause if result and result.state != "built" else "",
    }


def _detail(result: Result) -> dict[str, Any]:
    symbol, words = LOOKS["loads" if result.is_tried else result.state]
    return {
        "id": _identity(result.cell),
        "symbol": symbol,
        "words": words,
        "why": _REASONS.get(result.reason or "", ""),
        "made": _shown_time(result.finished),
        "result": result,
    }


def _identity(cell: Cell) -> str:
    return f"cell-{hashlib.sha256(str(cell).encode()).hexdigest()[:16]}"


def _shown_time(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"


def _policy(style: str, script: str) -> str:
    """Return the policy that names the page's own style and script by their digests.

    Source: https://www.w3.org/TR/CSP3/#grammardef-hash-source
    """
    digests = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    parts = [
        "default-src 'none'",
        f"style-src 'sha256-{digests[0]}'",
        f"script-src 'sha256-{digests[1]}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(parts)
