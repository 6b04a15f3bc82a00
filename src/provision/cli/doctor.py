"""``doctor``: what is wrong with this host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.options import command, option
from provision.cli.output import coloured, each, emit
from provision.doctor import State, diagnose, observe
from provision.errors import ExitCode

_STATES: tuple[State, ...] = ("ok", "warn", "fail", "unknown")


@command("doctor")
def doctor_command(
    *,
    with_ok: bool = option("--all", "Also show the checks that found nothing wrong."),
    root: Path = options.root,
) -> int:
    """Check this host for common problems with drivers, and explain causes and cures.

    The command changes nothing. The exit code is 1 if a check fails, and 3 if there is no driver
    that could be checked.
    """
    host = observe(root)
    checks = diagnose(host)
    states = Counter[State](check.state for check in checks)
    emit(
        {"checks": checks, "states": states},
        each("checks", lambda check: _check(check) if with_ok or check["state"] != "ok" else ()),
        ", ".join(f"{states[state]} {state}" for state in _STATES if states[state]),
    )
    if states["fail"]:
        return ExitCode.FAILED
    return ExitCode.DONE if host.drivers else ExitCode.NOT_FOUND


def _check(check: Mapping[str, Any]) -> Iterator[str]:
    state = coloured(check["state"], f"{check['state']:<7}")
    driver = f" ({check['driver']})" if check["driver"] else ""
    yield f"{state} {click.style(check['check'], bold=True)}{driver}: {check['seen']}"
    yield from (f"        {name}: {check[name]}" for name in ("cause", "cure") if check[name])
