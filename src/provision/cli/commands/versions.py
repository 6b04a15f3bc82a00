"""``provision kernels`` and ``provision versions``: kernels and versions to build, and offers."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from provision.build.driver_request import DriverRequest
from provision.cli import options
from provision.cli.display import print_table
from provision.cli.job import job
from provision.cli.options import print_fields, print_json
from provision.errors import ExitCode, ProvisionError, UsageError
from provision.sources.upstream import Branch, Reading, newest_first
from provision.store.availability import Concern, Offers, list_kernels, list_offers


@click.command("kernels")
@click.argument("driver")
@options.distro
@options.flavour
@options.catalogue
@options.root
@options.as_json
def kernels_command(
    *,
    driver: str,
    distro: str | None,
    flavour: str | None,
    catalogues: tuple[Path, ...],
    root: Path,
    as_json: bool,
) -> None:
    """List the packaged kernels, newest first, and whether DRIVER builds on each."""
    with job(root, catalogues) as work:
        chosen, rows = list_kernels(
            work.settings,
            lambda: work.engine,
            DriverRequest(driver, distro=distro, flavour=flavour),
            progress=work.progress,
        )
    if as_json:
        print_json(
            {
                "driver": driver,
                "distro": f"{chosen.id}:{chosen.version}",
                "kernels": [
                    {"release": row.release, "builds": row.builds, "version": row.version}
                    for row in rows
                ],
            }
        )
        return
    print_table(
        ("kernel", "builds", f"newest {driver} that does"),
        [(row.release, row.builds, row.version) for row in rows],
    )


@click.command("versions")
@click.argument("driver", required=False)
@click.option(
    "--check",
    is_flag=True,
    help="Show only what needs attention, and exit with 1 if something does.",
)
@click.option(
    "--offline",
    is_flag=True,
    help="Use the last answers of vendors, and query only vendors without one.",
)
@options.distro
@options.flavour
@options.catalogue
@options.root
@options.as_json
def versions_command(
    *,
    driver: str | None,
    check: bool,
    offline: bool,
    distro: str | None,
    flavour: str | None,
    catalogues: tuple[Path, ...],
    root: Path,
    as_json: bool,
) -> int:
    """Show which versions of DRIVER are installed, offered here, and offered by its vendor.

    Without DRIVER, the command shows the drivers of provision.toml.
    """
    with job(root, catalogues) as work:
        names = [driver] if driver else list(work.settings.config.drivers)
        if not names:
            raise UsageError(
                "No driver was named, and provision.toml names none.",
                resolution="Name one that 'provision drivers' lists: provision versions nvidia",
            )
        found = [
            list_offers(
                work.settings,
                DriverRequest(name, distro=distro, flavour=flavour),
                is_offline=offline,
                progress=work.progress,
            )
            for name in names
        ]
    concerns = [concern for offers in found for concern in offers.concerns()]
    if as_json:
        print_json({"drivers": [_document(offers) for offers in found]})
    elif check:
        _print_concerns(concerns)
    else:
        for offers in found:
            _print(offers)
    return ExitCode.FAILED if check and concerns else ExitCode.DONE


def _print(offers: Offers) -> None:
    installed = [
        f"{one.version} for {one.kernel}{', which runs' if one.is_running else ''}"
        for one in offers.installed
    ]
    print_fields(
        [
            ("driver", f"{offers.driver} ({offers.flavour})"),
            ("installed", "\n".join(installed) or None),
            ("asked for", _wish(offers)),
            (f"offered for {offers.distro.id}:{offers.distro.version}", _offered(offers)),
        ]
    )
    branches = offers.branches.all
    if branches:
        rows = [(b.name, b.maturity, b.newest, b.released, _life(b, offers)) for b in branches]
        print_table(("branch", "kind", "newest version", "released", "vendor cares until"), rows)
    if offers.readings:
        print_table(("asked", "answer", "newest version"), map(_row, offers.readings))
    _print_troubles([r.trouble for r in offers.readings if r.trouble is not None])
    _print_concerns(list(offers.concerns()))


def _print_troubles(troubles: list[ProvisionError]) -> None:
    """Print why sources did not answer; the same reason is printed once."""
    for resolution in dict.fromkeys(trouble.resolution for trouble in troubles):
        for trouble in troubles:
            if trouble.resolution == resolution:
                why = (trouble.details or "").partition("\n")[0]
                click.echo(f"{trouble.message} {why}".rstrip())
        if resolution:
            click.echo(f"  What to do: {resolution}")


def _print_concerns(concerns: list[Concern]) -> None:
    for concern in concerns:
        click.echo(f"{concern.message}.")
        if concern.resolution:
            click.echo(f"  What to do: {concern.resolution}")


def _wish(offers: Offers) -> str:
    return f"{offers.asked_for}: {offers.chosen}" if offers.chosen else offers.asked_for


def _offered(offers: Offers) -> str | None:
    return ", ".join(offers.offered) or None


def _life(branch: Branch, offers: Offers) -> str | None:
    if branch.last_day is None:
        return None
    return f"{branch.last_day}{' (ended)' if branch.has_ended(offers.day) else ''}"


def _row(reading: Reading) -> tuple[object, ...]:
    return (reading.url, _state(reading), _newest(reading))


def _state(reading: Reading) -> str:
    if reading.answer is None:
        return "none"
    when = f"{datetime.fromtimestamp(reading.answer.read, tz=UTC):%Y-%m-%d %H:%M} UTC"
    return f"none now; of {when}" if reading.trouble else f"of {when}"


def _newest(reading: Reading) -> str | None:
    found = newest_first(reading.releases)
    return found[0].version if found else None


def _document(offers: Offers) -> dict[str, Any]:
    return {
        "driver": offers.driver,
        "flavour": offers.flavour,
        "distro": f"{offers.distro.id}:{offers.distro.version}",
        "asked_for": offers.asked_for,
        "installed": [
            {"kernel": one.kernel, "version": one.version, "running": one.is_running}
            for one in offers.installed
        ],
        "offered": list(offers.offered),
        "chosen": offers.chosen,
        "branches": [
            {
                "name": branch.name,
                "kind": branch.maturity,
                "newest": branch.newest,
                "released": branch.released,
                "end_of_life": branch.last_day.isoformat() if branch.last_day else None,
                "ended": branch.has_ended(offers.day),
            }
            for branch in offers.branches.all
        ],
        "sources": [_source(reading) for reading in offers.readings],
        "concerns": [asdict(concern) for concern in offers.concerns()],
    }


def _source(reading: Reading) -> dict[str, Any]:
    answer, trouble = reading.answer, reading.trouble
    return {
        "kind": reading.source.kind,
        "url": reading.url,
        "read": answer.read if answer else None,
        "releases": [
            release.model_dump(mode="json", exclude_none=True)
            for release in newest_first(reading.releases)
        ],
        "error": {"message": trouble.message, "details": trouble.details} if trouble else None,
    }
