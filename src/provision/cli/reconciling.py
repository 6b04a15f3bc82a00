"""What the commands of the agent have in common. Imports nothing that takes long to load."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from provision.progress import Event, Progress

_COLOURS = {"ready": "green", "pending": "cyan", "reboot-required": "yellow"}


@contextmanager
def lazily_shown(*, verbose: bool) -> Iterator[Progress]:
    """Yield a progress that shows what it is told; what draws it is loaded with the first event."""
    opened: list[Any] = []

    def progress(event: Event) -> None:
        if not opened:
            shown = importlib.import_module("provision.cli.progress").shown(verbose=verbose)
            opened.extend([shown, shown.__enter__()])
        opened[1](event)

    try:
        yield progress
    finally:
        if opened:
            opened[0].__exit__(*sys.exc_info())


def coloured(state: str) -> str:
    """Return a state in its colour, on a terminal."""
    return click.style(state, fg=_COLOURS.get(state, "red"), bold=True)
