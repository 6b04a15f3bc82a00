"""``provision search``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import click

from provision.cli import options
from provision.cli.output import print_json
from provision.cli.tables import print_table
from provision.cli.target import Job, job
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pipeline.registries import Consent, connect, examine
from provision.registry.client import Client
from provision.registry.names import HostTag, parse_reference, read_tag


@dataclass(frozen=True, slots=True)
class _Row:
    """An image of a registry, as its tag calls it, and what its signature is worth here."""

    tag: HostTag
    reference: str
    signed_by: str | None = None
    refused: str | None = None


@click.command("search")
@click.argument("driver")
@click.option(
    "--registry",
    "address",
    metavar="HOST[:PORT][/PREFIX]",
    help="Where to look.  [[registry] address of provision.toml]",
)
@click.option("--kernel", metavar="RELEASE", help="List only what is for this kernel.")
@click.option("--verify", "verifies", is_flag=True, help="Look at each image's signature.")
@options.catalogue
@options.root
@options.as_json
def command(
    *,
    driver: str,
    address: str | None,
    kernel: str | None,
    verifies: bool,
    catalogues: tuple[Path, ...],
    root: Path,
    as_json: bool,
) -> None:
    """List the artifact images of DRIVER in a registry: versions, flavours, kernels and distros.

    They are read from the tags. What is true of an image is what its signature says: --verify.
    """
    with job(root, catalogues) as work:
        where = address or work.settings.config.registry.address
        if where is None:
            raise UsageError(
                "There is no registry to look in.",
                resolution="Give --registry, or set [registry] address in"
                " /etc/provision/provision.toml.",
            )
        client = connect(work.settings, parse_reference(f"{where}/{driver}"))
        rows = [_row(client, tag) for tag in _tags(work, client, driver)]
        rows = [row for row in rows if kernel is None or row.tag.kernel == kernel]
        if verifies:
            rows = [_verified(work, client, row) for row in rows]
    if as_json:
        images = [{**asdict(row.tag), "reference": row.reference, **_trust(row)} for row in rows]
        print_json({"registry": where, "driver": driver, "images": images})
    else:
        _print(rows, verifies=verifies)


def _tags(work: Job, client: Client, driver: str) -> list[HostTag]:
    try:
        flavours = tuple(work.settings.catalogue.entry(driver).recipe.flavours)
    except NotFoundError:
        # A driver that is known elsewhere.
        flavours = ()
    found = (read_tag(tag, flavours) for tag in client.tags())
    return sorted((tag for tag in found if tag), key=lambda tag: (tag.kernel, tag.text))


def _row(client: Client, tag: HostTag) -> _Row:
    return _Row(tag, str(client.reference.with_tag(tag.text)))


def _verified(work: Job, client: Client, row: _Row) -> _Row:
    one = Client(client.transport, client.reference.with_tag(row.tag.text))
    try:
        trusted = examine(work.settings, one, {}, Consent())
    except ProvisionError as error:
        return _Row(row.tag, row.reference, refused=error.details or error.message)
    key = trusted.verified.key if trusted.verified else None
    return _Row(row.tag, row.reference, signed_by=key)


def _trust(row: _Row) -> dict[str, str | None]:
    return {"signed_by": row.signed_by, "refused": row.refused}


def _print(rows: list[_Row], *, verifies: bool) -> None:
    if not rows:
        click.echo("The registry has no image that hosts would look for.")
        return
    columns: tuple[str, ...] = ("version", "flavour", "kernel", "distro")
    cells = [(row.tag.version, row.tag.flavour, row.tag.kernel, row.tag.distro) for row in rows]
    if not verifies:
        print_table(columns, cells)
        return
    signed = [
        (*cell, row.signed_by or (row.refused or "-").replace("\n", "; "))
        for cell, row in zip(cells, rows, strict=True)
    ]
    print_table((*columns, "signed by"), signed)
