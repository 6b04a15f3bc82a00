"""``provision vendor-file``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from provision.catalogue import Catalogue, catalogue_folders
from provision.cli import options
from provision.cli.output import print_json
from provision.files import write_atomic
from provision.host import read_facts
from provision.store.foreign_driver import foreign_vendor_file


@click.command("vendor-file")
@click.argument("driver")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it here.  [standard output]",
)
@options.catalogue
@options.root
@options.as_json
def command(
    *, driver: str, output: Path | None, catalogues: tuple[Path, ...], root: Path, as_json: bool
) -> None:
    """Write the vendor file of a driver that this host has from its distro or its maker.

    It lists the driver's libraries, programs and other files, which are looked for below --root.
    Write it again after the driver was updated. Drivers that 'provision install' put into the store
    have one already.
    """
    root = root.resolve()
    entry = Catalogue([*catalogue_folders(), *catalogues]).entry(driver)
    text = foreign_vendor_file(entry.recipe, root=root, machine=read_facts(root).arch)
    changed = write_atomic(output, text) if output is not None else False
    if as_json:
        document = {"vendor_file": json.loads(text), "output": str(output) if output else None}
        print_json({**document, "changed": changed})
    elif output is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"{output}: {'written' if changed else 'nothing to do'}.")
