"""``provision kernels``."""

from __future__ import annotations

from pathlib import Path

import click

from provision.cli import options
from provision.cli.output import print_json
from provision.cli.table import print_table
from provision.cli.target import job
from provision.pipeline.packaged_kernels import list_kernels


@click.command("kernels")
@click.argument("driver")
@options.distro
@options.flavour
@options.catalogue
@options.root
@options.as_json
def command(
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
            driver,
            distro=distro,
            flavour=flavour,
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
