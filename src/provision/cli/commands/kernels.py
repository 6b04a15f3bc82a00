"""``provision kernels``."""

from __future__ import annotations

from pathlib import Path

import click

from provision.cli import options
from provision.cli.output import print_json
from provision.cli.progress import shown
from provision.cli.table import print_table
from provision.pipeline.resolution import list_kernels
from provision.pipeline.settings import load_settings


@click.command("kernels")
@click.argument("driver")
@options.distro
@options.flavour
@options.catalogue
@options.root
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    *,
    driver: str,
    distro: str | None,
    flavour: str | None,
    catalogues: tuple[Path, ...],
    root: Path,
    as_json: bool,
) -> None:
    """List the packaged kernels, newest first, and whether DRIVER builds on each."""
    settings = load_settings(root, catalogues=catalogues)
    with shown(verbose=ctx.find_root().params["verbose"]) as progress:
        chosen, rows = list_kernels(
            settings, driver, distro=distro, flavour=flavour, progress=progress
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
