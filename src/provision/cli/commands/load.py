"""``provision load``."""

from __future__ import annotations

from pathlib import Path

import click

from provision.cli import options
from provision.cli.moving import move
from provision.pipeline.host_modules import load_driver


@click.command("load")
@click.argument("drivers", nargs=-1, metavar="[DRIVER]…")
@options.root
@options.dry_run
@options.as_json
def command(*, drivers: tuple[str, ...], root: Path, dry_run: bool, as_json: bool) -> None:
    """Load the modules of drivers from the store into the running kernel; all drivers by default.

    What is in their way is unloaded if nobody uses it, what they need of the kernel's own is loaded
    first, and missing device nodes are made. Nothing is built or downloaded.
    """
    move(load_driver, "loaded", drivers, root, dry_run=dry_run, as_json=as_json)
