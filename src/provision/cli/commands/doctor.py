"""``provision doctor``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import click

from provision.cli import options
from provision.cli.output import print_json
from provision.doctor import Result, State, diagnose, observe
from provision.errors import ExitCode

_COLOURS: Mapping[State, str] = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "cyan"}


@click.command("doctor")
@click.option("--all", "with_ok", is_flag=True, help="Show also what is right.")
@options.root
@options.as_json
def command(*, with_ok: bool, root: Path, as_json: bool) -> int:
    """Look for what is commonly wrong with drivers on a host, and say what to do about it.

    Nothing is changed. The exit code is 1 where something fails.
    """
    results = diagnose(observe(root))
    states = Counter(result.state for result in results)
    if as_json:
        print_json(
            {"checks": [asdict(result) for result in results], "states": dict(states)},
        )
    else:
        _print([r for r in results if with_ok or r.state != "ok"])
        click.echo(", ".join(f"{states[state]} {state}" for state in _COLOURS if states[state]))
    return ExitCode.FAILED if states["fail"] else ExitCode.DONE


def _print(results: Iterable[Result]) -> None:
    for result in results:
        state = click.style(f"{result.state:<7}", fg=_COLOURS[result.state], bold=True)
        driver = f" ({result.driver})" if result.driver else ""
        click.echo(f"{state} {click.style(result.check, bold=True)}{driver}: {result.seen}")
        for name, text in (("cause", result.cause), ("cure", result.cure)):
            if text:
                click.echo(f"        {name}: {text}")
