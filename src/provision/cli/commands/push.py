"""``provision push``, ``provision pull`` and ``provision search``: images of registries."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import click
from pydantic import ValidationError

from provision.cli import options
from provision.cli.commands.sign import KeyOptions, print_signed, signing_key
from provision.cli.output import print_fields, print_json
from provision.cli.tables import print_table
from provision.cli.target import Job, believing, job
from provision.engine.transfer import Pushed, find_image, push
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.pin import PIN_LABEL, Pin
from provision.pipeline.pulling import Pulled, store_pulled
from provision.pipeline.registries import Consent, connect, examine, host_reference
from provision.pipeline.signing import SignedImage, pushed_reference, sign_image
from provision.registry.artifact_images import Trusted
from provision.registry.client import Client
from provision.registry.names import HostTag, check_push_name, parse_reference, read_tag


@click.command("push")
@click.argument("image", metavar="IMAGE")
@click.argument("reference", metavar="[REF]", required=False)
@click.option("--sign", "signs", is_flag=True, help="Sign what was pushed.")
@signing_key
@options.root
@options.as_json
def push_command(
    *,
    image: str,
    reference: str | None,
    signs: bool,
    private: KeyOptions,
    root: Path,
    as_json: bool,
) -> None:
    """Push IMAGE, an artifact image of the engine, to a registry.

    Without REF it goes where hosts look for it: below [registry] address of provision.toml, under
    a tag of version, flavour, kernel and distro.
    """
    private.check(signs=signs)
    if reference is not None:
        check_push_name(reference)
    with job(root) as work:
        pin = _pin_of(work, image)
        name = reference or host_reference(work.settings, pin)
        if name is None:
            raise UsageError(
                "There is no registry to push to.",
                resolution="Give REF, or set [registry] address in /etc/provision/provision.toml.",
            )
        pushed, signed = push_and_sign(work, image, name, pin, private if signs else None)
    if as_json:
        print_json({**asdict(pushed), "signed": signed.document() if signed else None})
        return
    click.echo(f"{pushed.reference}@{pushed.digest}")
    if signed is not None:
        print_signed(signed)


def push_and_sign(
    work: Job, image: str, name: str, pin: Pin, private: KeyOptions | None
) -> tuple[Pushed, SignedImage | None]:
    """Push an image, and sign it if there is a key.

    Raises:
        ProvisionError: One of both failed. The key is opened first, so that nothing is pushed
            which then can't be signed.
    """
    signer = private.signer(work.settings) if private else None
    pushed = push(work.engine, find_image(work.engine, image).id, name, progress=work.progress)
    if signer is None:
        return pushed, None
    return pushed, sign_image(work.settings, pushed_reference(pushed), signer, expected=pin)


def _pin_of(work: Job, image: str) -> Pin:
    labels = find_image(work.engine, image).labels
    try:
        return Pin.model_validate_json(labels.get(PIN_LABEL, ""))
    except ValidationError as error:
        raise ProvisionError(
            f"'{image}' is no artifact image: it has no Pin in its label {PIN_LABEL}.",
            resolution="Name an image that 'provision build' made.",
        ) from error


@click.command("pull")
@click.argument("image", metavar="IMAGE")
@click.option("--replace", is_flag=True, help="Pull it although the store has it.")
@believing
@options.root
@options.dry_run
@options.as_json
def pull_command(
    *, image: str, replace: bool, consent: Consent, root: Path, dry_run: bool, as_json: bool
) -> None:
    """Put the artifact of IMAGE, an image of a registry, into the host's store.

    It is believed by its signature, and not put to use: 'provision install IMAGE' does that too. No
    engine is needed.
    """
    reference = parse_reference(image)
    with job(root) as work:
        client = connect(work.settings, reference)
        trusted = examine(work.settings, client, {}, consent)
        pulled = None
        if not dry_run:
            pulled = store_pulled(
                work.settings, trusted, consent, must_replace=replace, progress=work.progress
            )
    if as_json:
        print_json(_document(trusted, pulled))
    else:
        _print(trusted, pulled)


def _document(trusted: Trusted, pulled: Pulled | None) -> dict[str, object]:
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
        "entry": str(pulled.stored.entry) if pulled else None,
        "changed": pulled.stored.added if pulled else False,
        "seconds": round(pulled.seconds, 3) if pulled else 0.0,
        "dry_run": pulled is None,
    }


def _print(trusted: Trusted, pulled: Pulled | None) -> None:
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
def search_command(
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
        _print_found(rows, verifies=verifies)


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


def _print_found(rows: list[_Row], *, verifies: bool) -> None:
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
