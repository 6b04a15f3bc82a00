"""``provision search`` and ``pull``: what a registry offers, and how it gets into the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from provision.build.pin_file import load_pin
from provision.cli import options
from provision.cli.display import print_table
from provision.cli.job import Job, job, trusting
from provision.cli.options import print_fields, print_json
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pin import Pin
from provision.registry.artifact_images import Trusted
from provision.registry.find import Lookup, seek_pin
from provision.registry.image_archives import is_archive_name, open_archive
from provision.registry.manifests import Repository
from provision.registry.names import Reference, parse_reference, read_tag, version_of_tag
from provision.registry.registries import Consent, connect, examine
from provision.sources.market import newest_first
from provision.store.pulling import Pulled, store_pulled


@dataclass(frozen=True, slots=True)
class _Row:
    """An image of a registry, as its tag describes it, and its verified signature."""

    version: str
    flavour: str
    kernel: str
    distro: str
    reference: Reference
    architecture: str | None = None
    digest: str | None = None
    pin: str | None = None
    serial: int | None = None
    signed_by: str | None = None
    refused: str | None = None

    def document(self) -> dict[str, object]:
        return {**asdict(self), "reference": str(self.reference)}


@click.command("search")
@click.argument("driver")
@click.option(
    "--registry",
    "address",
    metavar="HOST[:PORT][/PREFIX]",
    help="Registry to search.  [[registry] address of provision.toml]",
)
@click.option("--kernel", metavar="RELEASE", help="List only images for this kernel.")
@click.option("--verify", "verifies", is_flag=True, help="Verify the signature of each image.")
@trusting
@options.catalogue
@options.root
@options.as_json
def search_command(
    *,
    driver: str,
    address: str | None,
    kernel: str | None,
    verifies: bool,
    consent: Consent,
    catalogues: tuple[Path, ...],
    root: Path,
    as_json: bool,
) -> None:
    """List the artifact images of DRIVER in a registry: versions, flavours, kernels and distros.

    The list comes from the tags. Only the signature of an image proves what it contains: use
    --verify.
    """
    with job(root, catalogues) as work:
        where = address or work.settings.config.registry.address
        if where is None:
            raise UsageError(
                "No registry is named to search.",
                resolution="Add --registry HOST, or set [registry] address in"
                " /etc/provision/provision.toml.",
            )
        client = connect(work.settings, parse_reference(f"{where}/{driver}"))
        rows = _tagged(work, client, driver)
        rows = _in_order([row for row in rows if kernel is None or row.kernel == kernel])
        if verifies:
            rows = [_verified(work, client, row, consent) for row in rows]
    if as_json:
        images = [row.document() for row in rows]
        print_json({"registry": where, "driver": driver, "images": images})
    else:
        _print_found(rows, verifies=verifies)


def _tagged(work: Job, client: Repository, driver: str) -> list[_Row]:
    try:
        flavours = tuple(work.settings.catalogue.entry(driver).recipe.flavours)
    except NotFoundError:
        # The driver is only known elsewhere.
        flavours = ()
    found = ((tag, read_tag(tag, flavours)) for tag in client.tags())
    return [
        _Row(**asdict(read), reference=client.reference.with_tag(tag))
        for tag, read in found
        if read
    ]


def _in_order(rows: Sequence[_Row]) -> list[_Row]:
    """Return the images by kernel, and the newest version first for each."""
    labels = {row.version: version_of_tag(row.version) for row in rows}
    ranks = {version: rank for rank, version in enumerate(newest_first(labels.values()))}
    return sorted(
        rows,
        key=lambda row: (row.kernel, ranks[labels[row.version]], row.flavour),
    )


def _verified(work: Job, client: Repository, row: _Row, consent: Consent) -> _Row:
    try:
        trusted = examine(work.settings, client.at(row.reference), {}, consent)
    except ProvisionError as error:
        return replace(row, refused=error.details or error.message)
    pin = trusted.image.pin
    return replace(
        row,
        architecture=pin.kernel.architecture,
        digest=trusted.image.reference.digest,
        pin=pin.digest,
        serial=trusted.facts.serial if trusted.facts else None,
        signed_by=trusted.verified.key if trusted.verified else None,
    )


def _print_found(rows: list[_Row], *, verifies: bool) -> None:
    if not rows:
        click.echo("The registry has no image that hosts would look for.")
        return
    columns: tuple[str, ...] = ("version", "flavour", "kernel", "distro")
    cells = [(row.version, row.flavour, row.kernel, row.distro) for row in rows]
    if not verifies:
        print_table(columns, cells)
        return
    signed = [
        (*cell, row.signed_by or (row.refused or "-").replace("\n", "; "))
        for cell, row in zip(cells, rows, strict=True)
    ]
    print_table((*columns, "signed by"), signed)


@click.command("pull")
@click.argument("image", metavar="[IMAGE|FILE.tar]", required=False)
@click.option(
    "--pin",
    "pin_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="In place of IMAGE, pull the image of this Pin from the registry of provision.toml;"
    " 'provision resolve --output' writes the file.",
)
@options.again
@trusting
@options.root
@options.dry_run
@options.as_json
def pull_command(
    *,
    image: str | None,
    pin_file: Path | None,
    again: bool,
    consent: Consent,
    root: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Put the artifact of IMAGE, an image in a registry or an archive, into the host's store.

    The command verifies the signature of the image and needs no engine. It does not activate the
    artifact; 'provision install IMAGE' does.
    """
    if (image is None) == (pin_file is None):
        raise UsageError(
            "Give either IMAGE or --pin FILE.",
            resolution="'provision pull --help' lists the options.",
        )
    with job(root) as work:
        if image is not None:
            trusted = examine(work.settings, _repository(work, image), {}, consent)
        else:
            trusted = _of_pin(work, load_pin(Path(str(pin_file))), consent)
        pulled = None
        if not dry_run:
            pulled = store_pulled(
                work.settings, trusted, consent, must_replace=again, progress=work.progress
            )
    if as_json:
        print_json(_pulled_document(trusted, pulled))
    else:
        _print_pulled(trusted, pulled)


def _repository(work: Job, image: str) -> Repository:
    """Open the archive or the registry that has an image."""
    if is_archive_name(image):
        return open_archive(work.settings, Path(image), progress=work.progress)
    return connect(work.settings, parse_reference(image))


def _of_pin(work: Job, pin: Pin, consent: Consent) -> Trusted:
    found = seek_pin(work.settings, pin, Lookup(consent, connected=connect, progress=work.progress))
    if found is None:
        addresses = ", ".join(work.settings.config.registry.addresses) or "none is set"
        raise NotFoundError(
            f"No registry has {pin.driver.name} of the Pin {pin.digest} ({addresses}).",
            resolution="Build and push it: provision build --pin FILE --push … --sign; or set"
            " [registry] address in /etc/provision/provision.toml.",
        )
    return found


def _pulled_document(trusted: Trusted, pulled: Pulled | None) -> dict[str, object]:
    pin = trusted.image.pin
    return {
        "reference": str(trusted.image.reference),
        "digest": pin.digest,
        "driver": pin.driver.name,
        "version": pin.driver.version,
        "kernel": pin.kernel.release,
        "signed_by": trusted.verified.key if trusted.verified else None,
        "facts": asdict(trusted.facts) if trusted.facts else None,
        "size": trusted.image.manifest.size,
        "received": pulled.received if pulled else 0,
        "entry": str(pulled.stored.entry) if pulled else None,
        "changed": pulled.stored.added if pulled else False,
        "seconds": round(pulled.seconds, 3) if pulled else 0.0,
        "dry_run": pulled is None,
    }


def _print_pulled(trusted: Trusted, pulled: Pulled | None) -> None:
    pin = trusted.image.pin
    by = trusted.verified.key if trusted.verified else "no key"
    done = "would be pulled"
    if pulled is not None:
        done = str(pulled.stored.entry) + ("" if pulled.stored.added else " (was there)")
    print_fields(
        [
            ("image", trusted.image.reference),
            ("driver", f"{pin.driver.name} {pin.driver.version} ({pin.driver.flavour})"),
            ("kernel", pin.kernel.release),
            ("signed by", by),
            ("artifact", done),
        ]
    )
