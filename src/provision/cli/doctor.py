"""``doctor``: what is wrong with this host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import click

from provision.cli import options
from provision.cli.options import command, option
from provision.cli.output import coloured, each, emit
from provision.doctor import State, diagnose, observe
from provision.errors import ExitCode

_WELL = {"ok", "not-applicable"}


@command("doctor")
def doctor_command(
    *,
    with_ok: bool = option(
        "--all", "Also show the checks that found nothing wrong or nothing to look at."
    ),
    root: Path = options.root,
) -> None:
    """Check this host for common problems with drivers, and explain causes and cures.

    The command changes nothing. The exit code is 1 if a check fails, and 3 if there is no
    driver or something could not be checked.
    """
    host = observe(root)
    checks = diagnose(host)
    states = Counter[State](check.state for check in checks)
    code = ExitCode.NOT_FOUND if states["unknown"] or not host.drivers else ExitCode.DONE
    emit(
        {"checks": checks, "states": states},
        each("checks", lambda one: _check(one) if with_ok or one["state"] not in _WELL else ()),
        ", ".join(f"{states[state]} {state}" for state in get_args(State) if states[state]),
        code=ExitCode.FAILED if states["fail"] else code,
    )


def _check(check: Mapping[str, Any]) -> Iterator[str]:
    state = coloured(check["state"], f"{check['state']:<7}")
    driver = f" ({check['driver']})" if check["driver"] else ""
    head = f"{state} {click.style(check['check'], bold=True)}{driver}"
    for name, said in (("seen", head), ("cause", "        cause"), ("cure", "        cure")):
        first, *more = (check[name] or "").splitlines() or [""]
        yield from [f"{said}: {first}"] if first else []
        yield from (f"          {line}" for line in more)
