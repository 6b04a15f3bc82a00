"""The HTML page of a compatibility matrix, which needs no server, no network and no other file.

Its content comes from builds and hosts, so all of it is escaped. Its policy forbids loading files
and running scripts other than its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from markupsafe import Markup

import provision
from provision.errors import NotFoundError
from provision.fleet.matrix.cells import Cell, Column, Row
from provision.fleet.matrix.grid import LOOKS, MatrixReport
from provision.fleet.matrix.results import Result

_TEMPLATE = "matrix/page.html.j2"
_STYLE = "matrix/page.css"
_SCRIPTS = ("page/shared.js", "matrix/page.js")
_REASONS = {
    "compile": "does not compile",
    "build": "a step of the build failed",
    "missing": "something is missing",
    "failed": "failed",
}


def render_page(report: MatrixReport, templates: Path, *, time: float) -> str:
    """Return the page of a report; ``time`` is the Unix time of the page."""
    try:
        style = (templates / _STYLE).read_text()
        script = "".join((templates / one).read_text() for one in _SCRIPTS)
        template = Environment(
            loader=FileSystemLoader(templates),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        ).get_template(_TEMPLATE)
    except (OSError, TemplateError) as error:
        raise NotFoundError(
            f"The page's template can't be read: {error}.",
            resolution=f"It belongs to '{templates}': install this version of provision again.",
        ) from error
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
    symbol, words = LOOKS[result.state]
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
    """Return a Unix time for people; a time outside of the calendar as a number."""
    try:
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return str(time)


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
