"""``provision unload``."""

from __future__ import annotations

from pathlib import Path

import click

from provision.cli import options
from provision.cli.moving import move
from provision.pipeline.host_modules import unload_driver


@click.command("unload")
@click.argument("drivers", nargs=-1, metavar="[DRIVER]…")
@options.root
@options.dry_run
@options.as_json
def command(*, drivers: tuple[str, ...], root: Path, dry_run: bool, as_json: bool) -> None:
    """Unload the modules of drivers from the running kernel; all drivers by default.

    Never by force: a module that somebody uses stays, with all of its driver's, and the exit code
    is 4. The driver stays in the store.
    """
    move(unload_driver, "unloaded", drivers, root, dry_run=dry_run, as_json=as_json)
