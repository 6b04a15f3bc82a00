"""A compatibility matrix as one HTML page."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from provision.matrix.cells import Cell, Column, Row
from provision.matrix.grid import LOOKS, Report
from provision.matrix.results import Result
from provision.pipeline.html_page import render_html, shown_time

TEMPLATE = "matrix/page.html.j2"
_STYLES = ("matrix/page.css",)
_SCRIPTS = ("page/shared.js", "matrix/page.js")
_REASONS = {
    "compile": "does not compile",
    "build": "a step of the build failed",
    "missing": "something is missing",
    "failed": "failed",
}


def render_page(report: Report, templates: Path, *, time: float) -> str:
    """Return the page of a report.

    Args:
        report: What it shows.
        templates: Folder of the templates.
        time: Unix time that it says it was made at.

    Raises:
        NotFoundError: The folder lacks its templates.
    """
    values = {
        "counts": [(state, *LOOKS[state], count) for state, count in report.counts.items()],
        "distros": _distros(report),
        "columns": report.columns,
        "drivers": list(dict.fromkeys(row.driver for row in report.rows)),
        "rows": [_row(report, row) for row in report.rows],
        "details": [
            _detail(result)
            for column in report.columns
            for row in report.rows
            if (result := report.result(row, column))
        ],
    }
    return render_html(
        templates, TEMPLATE, styles=_STYLES, scripts=_SCRIPTS, time=time, values=values
    )


def _distros(report: Report) -> list[tuple[str, int]]:
    """Return the distros with how many kernels each has, in the order of the columns."""
    counts: dict[str, int] = {}
    for column in report.columns:
        counts[column.distro] = counts.get(column.distro, 0) + 1
    return list(counts.items())


def _row(report: Report, row: Row) -> dict[str, Any]:
    return {"row": row, "cells": [_cell(report, row, column) for column in report.columns]}


def _cell(report: Report, row: Row, column: Column) -> dict[str, Any]:
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
    symbol, words = LOOKS[result.state]
    return {
        "id": _identity(result.cell),
        "symbol": symbol,
        "words": words,
        "why": _REASONS.get(result.reason or "", ""),
        "made": shown_time(result.finished),
        "result": result,
    }


def _identity(cell: Cell) -> str:
    return f"cell-{hashlib.sha256(str(cell).encode()).hexdigest()[:16]}"
