"""``provision push``."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click
from pydantic import ValidationError

from provision.cli import options
from provision.cli.commands.sign import print_signed
from provision.cli.key_options import KeyOptions, signing_key
from provision.cli.options import print_json
from provision.cli.target import Job, job
from provision.engine.transfer import Pushed, find_image
from provision.errors import ProvisionError, UsageError
from provision.pin import PIN_LABEL, Pin
from provision.pipeline.image_archives import save_image
from provision.pipeline.image_signing import EngineImage, SignedImage, publish
from provision.pipeline.registries import host_reference
from provision.registry.names import check_push_name


@click.command("push")
@click.argument("image", metavar="IMAGE")
@click.argument("reference", metavar="[REF]", required=False)
@click.option("--sign", "signs", is_flag=True, help="Sign what was pushed.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.tar",
    help="Write it to an archive, in place of a registry.",
)
@signing_key
@options.root
@options.as_json
def command(
    *,
    image: str,
    reference: str | None,
    signs: bool,
    output: Path | None,
    private: KeyOptions,
    root: Path,
    as_json: bool,
) -> None:
    """Push IMAGE, an artifact image of the engine, to a registry, or write it to an archive.

    Without REF it goes where hosts look for it: below [registry] address of provision.toml, under
    a tag of version, flavour, kernel and distro. It gets the tag of its Pin too, which never leads
    to another image. With --sign, the registry's catalogue lists it.
    """
    private.check(signs=signs)
    if output is not None and reference is not None:
        raise UsageError("Give either REF or --output.", resolution="Leave one of them out.")
    if reference is not None:
        check_push_name(reference)
    with job(root) as work:
        found = _engine_image(work, image)
        name = reference or host_reference(work.settings, found.pin)
        if name is None and output is None:
            raise UsageError(
                "There is no registry to push to.",
                resolution="Give REF, or set [registry] address in /etc/provision/provision.toml.",
            )
        found = replace(found, signer=private.signer(work.settings) if signs else None)
        if output is not None:
            saved, signed = save_image(work.settings, found, output, progress=work.progress)
            print_saved(output, saved, signed, as_json=as_json)
            return
        pushed, signed = publish(work.settings, found, str(name), progress=work.progress)
    _print_pushed(pushed, signed, as_json=as_json)


def _print_pushed(pushed: Pushed, signed: SignedImage | None, *, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(pushed), "signed": signed.document() if signed else None})
        return
    click.echo(f"{pushed.reference}@{pushed.digest}")
    if signed is not None:
        print_signed(signed)


def print_saved(output: Path, digest: str, signed: SignedImage | None, *, as_json: bool) -> None:
    """Print which archive was written."""
    document = signed.document() if signed else None
    if as_json:
        print_json({"output": str(output), "digest": digest, "signed": document})
        return
    click.echo(f"{output} {digest}")
    if signed is not None:
        print_signed(signed)


def _engine_image(work: Job, image: str) -> EngineImage:
    """Return an image of the engine with its Pin.

    Raises:
        ProvisionError: It is not an artifact image.
    """
    found = find_image(work.engine, image)
    try:
        pin = Pin.model_validate_json(found.labels.get(PIN_LABEL, ""))
    except ValidationError as error:
        raise ProvisionError(
            f"'{image}' is no artifact image: it has no Pin in its label {PIN_LABEL}.",
            resolution="Name an image that 'provision build' made.",
        ) from error
    return EngineImage(work.engine, found.id, pin)
