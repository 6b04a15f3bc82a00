"""``doctor`` and ``facts``: what a host is, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from provision.build.workspace import load_settings
from provision.catalogue import Recipe
from provision.cli import options
from provision.cli.options import command, option
from provision.cli.output import coloured, each, emit, fields, plain
from provision.doctor import State, diagnose, observe
from provision.errors import ExitCode
from provision.host.facts import read_facts

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


@command("facts")
def facts_command(
    *,
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
) -> None:
    """Show facts about this host, and the PCI devices that the catalogue has drivers for."""
    document = plain(read_facts(root))
    recipes: list[Recipe] = []
    if document["pci"]:
        entries, _problems = load_settings(root, catalogues=catalogues).catalogue.entries()
        recipes = [entry.recipe for entry in entries]
    for shown in document["pci"]:
        identity = {key: shown[key] for key in ("vendor", "device", "device_class")}
        shown["catalogue"] = [
            recipe.name
            for recipe in recipes
            if any(match.matches(**identity) for match in recipe.hardware.pci)
        ]
    emit(
        document,
        fields(
            {
                "distro": lambda facts: "{id} {version} ({name})".format_map(facts["distro"]),
                "kernel": "kernel",
                "architecture": "arch",
                "engines": lambda facts: ", ".join(map(_engine, facts["engines"])) or "none",
                "Secure Boot": "secure_boot",
                "lockdown": "lockdown",
                "SELinux": "selinux",
                "immutable": "immutable",
                "PCI devices": lambda facts: (
                    f"{len(facts['pci'])}, {len(_known(facts))} known to the catalogue"
                ),
                "?": lambda facts: "\n".join(_known(facts)) or None,
            }
        ),
    )


def _engine(engine: Mapping[str, Any]) -> str:
    return f"{engine['name']} ({'runs' if engine['socket'] else 'does not run'})"


def _known(facts: Mapping[str, Any]) -> list[str]:
    return [
        f"{one['address']} {one['vendor']}:{one['device']} {', '.join(one['catalogue'])}"
        f" (driven by {one['driver'] or 'nothing'})"
        for one in facts["pci"]
        if one["catalogue"]
    ]
