"""``provision load`` and ``provision unload``: several drivers, one answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import click

from provision.cli import options
from provision.cli.options import print_json
from provision.cli.progress_display import shown
from provision.errors import ExitCode, ProvisionError
from provision.pipeline.host_modules import Moved, load_driver, stored_drivers, unload_driver
from provision.pipeline.workspace import Settings, load_settings
from provision.progress import Progress


class Mover(Protocol):
    """Loads or unloads the modules of one driver."""

    def __call__(
        self, settings: Settings, driver: str, *, dry_run: bool, progress: Progress
    ) -> Moved:
        """Do it."""


class SeveralDriversError(ProvisionError):
    """More than one driver failed.

    Args:
        verb: What could not be done with them.
        failed: What each of them said.
    """

    def __init__(self, verb: str, failed: dict[str, ProvisionError]) -> None:
        super().__init__(
            f"{len(failed)} drivers could not be {verb}.",
            resolution="Name one driver only to read what to do about it.",
            details="\n".join(f"{name}: {error.message}" for name, error in failed.items()),
        )
        codes = {error.exit_code for error in failed.values()}
        self.exit_code = codes.pop() if len(codes) == 1 else ExitCode.FAILED
        self._failed = failed

    def members(self) -> dict[str, object]:
        """Return what each driver said."""
        return {
            "drivers": {
                name: {"message": error.message, "exit_code": int(error.exit_code)}
                for name, error in self._failed.items()
            }
        }


def move(
    mover: Mover, verb: str, drivers: Sequence[str], root: Path, *, dry_run: bool, as_json: bool
) -> None:
    """Load or unload drivers one after the other, whichever of them fail, and print the result.

    Args:
        mover: What is done with each.
        verb: ``loaded`` or ``unloaded``.
        drivers: Which; none: all in the store.
        root: Root of the host.
        dry_run: Only say what would be done.
        as_json: Print one JSON document.

    Raises:
        ProvisionError: It failed with one driver, or with several.
    """
    settings = load_settings(root)
    results: list[Moved] = []
    failed: dict[str, ProvisionError] = {}
    with shown(verbose=False) as progress:
        for driver in drivers or stored_drivers(settings.root):
            try:
                results.append(mover(settings, driver, dry_run=dry_run, progress=progress))
            except ProvisionError as error:
                failed[driver] = error
    if not (as_json and failed):
        _print(results, verb, dry_run=dry_run, as_json=as_json)
    if len(failed) == 1:
        raise next(iter(failed.values()))
    if failed:
        raise SeveralDriversError(verb, failed)


def _print(results: Iterable[Moved], verb: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        drivers = [_document(result, changed=not dry_run) for result in results]
        print_json({"drivers": drivers, "dry_run": dry_run})
        return
    for result in results:
        pin = result.manifest.pin
        what = f"{pin.driver.name} {pin.driver.version}"
        would = "would be " if dry_run else ""
        if result.conflicts:
            click.echo(f"{', '.join(result.conflicts)}: {would}unloaded")
        for problem in result.problems:
            click.echo(f"{what}: warning: {problem}", err=True)
        if result.modules:
            click.echo(f"{what}: {would}{verb}: {', '.join(result.modules)}")
        else:
            click.echo(f"{what}: nothing to do.")


def _document(result: Moved, *, changed: bool) -> dict[str, Any]:
    pin = result.manifest.pin
    return {
        "driver": pin.driver.name,
        "version": pin.driver.version,
        "kernel": pin.kernel.release,
        "digest": pin.digest,
        "entry": str(result.entry),
        "modules": list(result.modules),
        "conflicts": list(result.conflicts),
        "problems": list(result.problems),
        "changed": changed and bool(result.modules or result.conflicts),
    }


@click.command("load")
@click.argument("drivers", nargs=-1, metavar="[DRIVER]…")
@options.root
@options.dry_run
@options.as_json
def load_command(*, drivers: tuple[str, ...], root: Path, dry_run: bool, as_json: bool) -> None:
    """Load the modules of drivers from the store into the running kernel; all drivers by default.

    What is in their way is unloaded if no one uses it, what they need of the kernel's own is loaded
    first, and missing device nodes are made. Nothing is built or downloaded.
    """
    move(load_driver, "loaded", drivers, root, dry_run=dry_run, as_json=as_json)


@click.command("unload")
@click.argument("drivers", nargs=-1, metavar="[DRIVER]…")
@options.root
@options.dry_run
@options.as_json
def unload_command(*, drivers: tuple[str, ...], root: Path, dry_run: bool, as_json: bool) -> None:
    """Unload the modules of drivers from the running kernel; all drivers by default.

    Never by force: a module that someone uses stays, with all of its driver's, and the exit code
    is 4. The driver stays in the store.
    """
    move(unload_driver, "unloaded", drivers, root, dry_run=dry_run, as_json=as_json)
