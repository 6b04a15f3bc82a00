"""Prints results on standard output: one JSON document, or lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click


def print_json(document: Mapping[str, Any]) -> None:
    """Print the one document of a command."""
    click.echo(json.dumps(document, indent=2))


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names with values, a line each; None is shown as a dash."""
    rows = [(name, for_people(value)) for name, value in fields]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        first, *more = value.splitlines() or [""]
        click.echo(f"{name:<{width}}  {first}")
        for line in more:
            click.echo(f"{'':<{width}}  {line}")


def megabytes(size: int) -> str:
    """Return a number of bytes for people."""
    return f"{size / 1_000_000:.1f} MB"


def for_people(value: object) -> str:
    """Return a value as text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
