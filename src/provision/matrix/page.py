"""A compatibility matrix as one HTML page that needs nothing else.

Whatever is in it comes from builds: everything is escaped, and the page's own policy lets nothing
be loaded and no script run but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from markupsafe import Markup

import provision
from provision.errors import NotFoundError
from provision.matrix.cells import Cell, Column, Row
from provision.matrix.grid import LOOKS, Report
from provision.matrix.results import Result

TEMPLATE = "matrix/page.html.j2"
_STYLE, _SCRIPT = "matrix/page.css", "matrix/page.js"
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
    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    try:
        style = (templates / _STYLE).read_text()
        script = (templates / _SCRIPT).read_text()
        template = environment.get_template(TEMPLATE)
    except (OSError, TemplateError) as error:
        raise NotFoundError(
            f"The page's template can't be read: {error}.",
            resolution=f"It belongs to '{templates}': install this version of provision again.",
        ) from error
    return template.render(
        style=Markup(style),  # noqa: S704 - our own file, not a build's output
        script=Markup(script),  # noqa: S704 - the same
        policy=_policy(style, script),
        made=datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=provision.__version__,
        counts=[(state, *LOOKS[state], count) for state, count in report.counts.items()],
        distros=_distros(report),
        columns=report.columns,
        drivers=list(dict.fromkeys(row.driver for row in report.rows)),
        rows=[_row(report, row) for row in report.rows],
        details=[
            _detail(result)
            for column in report.columns
            for row in report.rows
            if (result := report.result(row, column))
        ],
    )


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
    made = datetime.fromtimestamp(result.finished, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {
        "id": _identity(result.cell),
        "symbol": symbol,
        "words": words,
        "why": _REASONS.get(result.reason or "", ""),
        "made": made,
        "result": result,
    }


def _identity(cell: Cell) -> str:
    return f"cell-{hashlib.sha256(str(cell).encode()).hexdigest()[:16]}"
