"""What the agent's commands share. Imports nothing that takes long to load."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from provision.agent.conclusion import Result
from provision.agent.outcome import Outcome
from provision.agent.status import Status
from provision.errors import ExitCode
from provision.progress import Event, Progress

_COLOURS = {"ready": "green", "pending": "cyan", "reboot-required": "yellow"}


@contextmanager
def lazily_shown(*, verbose: bool) -> Iterator[Progress]:
    """Yield a progress that shows what it receives; the first event loads what draws it."""
    opened: list[Any] = []

    def progress(event: Event) -> None:
        if not opened:
            from provision.cli.display import shown  # noqa: PLC0415 - loads rich

            display = shown(verbose=verbose)
            opened.extend([display, display.__enter__()])
        opened[1](event)

    try:
        yield progress
    finally:
        if opened:
            opened[0].__exit__(*sys.exc_info())


def result_document(result: Result) -> dict[str, Any]:
    """Return what 'provision apply --json' prints."""
    return {
        "changed": any(outcome.error is None for outcome in result.outcomes),
        "actions": [_outcome(outcome) for outcome in result.outcomes],
        "status": result.status.document(),
        "problems": list(result.problems),
        **_error(result.status),
    }


def _error(status: Status) -> dict[str, Any]:
    """Return what every command says that did not end well; nothing if this one did."""
    if status.error is not None:
        return {"error": asdict(status.error)}
    artifacts = [
        (driver.name, artifact) for driver in status.drivers for artifact in driver.kernels
    ]
    bad = [
        (name, artifact)
        for name, artifact in artifacts
        if artifact.state not in {"ready", "pending"}
    ]
    if status.exit_code == ExitCode.DONE or not bad:
        return {}
    name, worst = bad[0]
    return {
        "error": {
            "message": f"{name} for {worst.release} is {worst.state}: {worst.reason}",
            "resolution": worst.resolution,
            "details": worst.failure.details if worst.failure else None,
            "exit_code": status.exit_code,
        }
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    error = outcome.error
    return {
        "kind": outcome.action.kind,
        "driver": outcome.action.driver,
        "kernel": outcome.action.kernel,
        "reason": outcome.action.reason,
        "result": outcome.result,
        "seconds": round(outcome.seconds, 3),
        "error": None
        if error is None
        else {
            "message": error.message,
            "resolution": error.resolution,
            "details": error.details,
            "exit_code": int(error.exit_code),
        },
    }


def print_result(result: Result) -> None:
    """Print how the host is after a run, for people."""
    status = result.status
    for driver in status.drivers:
        for note in driver.notes:
            click.echo(f"{driver.name}: {note}")
    if not result.outcomes and status.state == "ready":
        click.echo("Nothing to do.")
        return
    for driver in status.drivers:
        for artifact in driver.kernels:
            text = f"{driver.name} for {artifact.release}: {_coloured(artifact.state)}"
            click.echo(f"{text}, {artifact.version}" if artifact.version else text)
            details = artifact.failure.details if artifact.failure else None
            _print_reason(artifact.reason, details, artifact.resolution)
    if status.error is not None:
        error = status.error
        click.echo(f"{_coloured('failed')}: {error.message}")
        _print_reason(None, error.details, error.resolution)
    elif not status.drivers:
        click.echo("provision.toml names no driver: nothing to do.")


def _print_reason(reason: str | None, details: str | None, resolution: str | None) -> None:
    for line in [*([reason] if reason else []), *(details or "").splitlines()]:
        click.echo(f"  {line}")
    if resolution:
        click.echo(f"  What to do: {resolution}")


def _coloured(state: str) -> str:
    """Return a state in its colour, on a terminal."""
    return click.style(state, fg=_COLOURS.get(state, "red"), bold=True)
