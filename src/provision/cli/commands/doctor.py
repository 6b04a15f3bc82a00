"""``provision doctor`` and ``provision facts``: what a host is, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from provision.catalogue import Catalogue, catalogue_folders
from provision.cli import options
from provision.cli.options import print_fields, print_json
from provision.doctor import Result, State, diagnose, observe
from provision.errors import ExitCode
from provision.host.facts import Facts, PciDevice, read_facts

_COLOURS: Mapping[State, str] = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "cyan"}


@click.command("doctor")
@click.option(
    "--all", "with_ok", is_flag=True, help="Also show the checks that found nothing wrong."
)
@options.root
@options.as_json
def doctor_command(*, with_ok: bool, root: Path, as_json: bool) -> int:
    """Check this host for common problems with drivers, and explain causes and cures.

    The command changes nothing. The exit code is 1 if a check fails, and 3 if there is no driver
    that could be checked.
    """
    scene = observe(root)
    results = diagnose(scene)
    states = Counter(result.state for result in results)
    if as_json:
        print_json(
            {"checks": [asdict(result) for result in results], "states": dict(states)},
        )
    else:
        _print([r for r in results if with_ok or r.state != "ok"])
        click.echo(", ".join(f"{states[state]} {state}" for state in _COLOURS if states[state]))
    if states["fail"]:
        return ExitCode.FAILED
    return ExitCode.DONE if scene.drivers else ExitCode.NOT_FOUND


def _print(results: Iterable[Result]) -> None:
    for result in results:
        state = click.style(f"{result.state:<7}", fg=_COLOURS[result.state], bold=True)
        driver = f" ({result.driver})" if result.driver else ""
        click.echo(f"{state} {click.style(result.check, bold=True)}{driver}: {result.seen}")
        for name, text in (("cause", result.cause), ("cure", result.cure)):
            if text:
                click.echo(f"        {name}: {text}")


@click.command("facts")
@options.catalogue
@options.root
@options.as_json
def facts_command(*, catalogues: tuple[Path, ...], root: Path, as_json: bool) -> None:
    """Show facts about this host, and the PCI devices that the catalogue has drivers for."""
    facts = read_facts(root)
    drivers = _drivers(facts, Catalogue([*catalogue_folders(), *catalogues]))
    if as_json:
        print_json(_document(facts, drivers))
    else:
        print_fields(_fields(facts, drivers))


def _drivers(facts: Facts, catalogue: Catalogue) -> dict[str, list[str]]:
    """Return the names of the drivers for each PCI device, by its address."""
    if not facts.pci:
        return {}
    entries, _problems = catalogue.entries()
    found = {
        device.address: [
            entry.recipe.name
            for entry in entries
            if any(
                match.matches(
                    vendor=device.vendor, device=device.device, device_class=device.device_class
                )
                for match in entry.recipe.hardware.pci
            )
        ]
        for device in facts.pci
    }
    return {address: names for address, names in found.items() if names}


def _document(facts: Facts, drivers: dict[str, list[str]]) -> dict[str, Any]:
    document = facts.to_json()
    for device in document["pci"]:
        device["catalogue"] = drivers.get(device["address"], [])
    return document


def _fields(facts: Facts, drivers: dict[str, list[str]]) -> list[tuple[str, object]]:
    engines = [
        f"{engine.name} ({'runs' if engine.socket else 'does not run'})" for engine in facts.engines
    ]
    known = [_device(device, drivers) for device in facts.pci if device.address in drivers]
    return [
        ("distro", f"{facts.distro.id} {facts.distro.version} ({facts.distro.name})"),
        ("kernel", facts.kernel),
        ("architecture", facts.arch),
        ("engines", ", ".join(engines) or "none"),
        ("Secure Boot", facts.secure_boot),
        ("lockdown", facts.lockdown),
        ("SELinux", facts.selinux),
        ("immutable", facts.immutable),
        ("PCI devices", f"{len(facts.pci)}, {len(known)} known to the catalogue"),
        *([("", "\n".join(known))] if known else []),
    ]


def _device(device: PciDevice, drivers: dict[str, list[str]]) -> str:
    return (
        f"{device.address} {device.vendor}:{device.device} {', '.join(drivers[device.address])}"
        f" (driven by {device.driver or 'nothing'})"
    )
