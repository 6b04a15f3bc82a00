"""``provision push``, ``sign`` and ``key``: offer signed artifact images."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click
from pydantic import ValidationError

from provision.cli import options
from provision.cli.job import Job, KeyOptions, PasswordSource, job, password_source, signing_key
from provision.cli.options import print_fields, print_json
from provision.engine.transfer import Pushed, find_image
from provision.errors import ProvisionError, UsageError
from provision.pin import PIN_LABEL, Pin
from provision.registry.image_archives import save_image
from provision.registry.image_signing import EngineImage, SignedImage, publish, sign_image
from provision.registry.names import check_push_name, parse_reference
from provision.registry.private_key import generate_key
from provision.registry.registries import host_reference


@click.command("push")
@click.argument("image", metavar="IMAGE")
@click.argument("reference", metavar="[REF]", required=False)
@click.option("--sign", "signs", is_flag=True, help="Sign the pushed image.")
@click.option(
    "--output",
    type=options.OUTPUT_FILE,
    metavar="FILE.tar",
    help="Write the image to an archive in place of a registry.",
)
@signing_key
@options.root
@options.as_json
def push_command(
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

    Without REF, the image gets the name that hosts look for: below [registry] address of
    provision.toml, with a tag of version, flavour, kernel and distro. It also gets the tag of its
    Pin, which never points to another image.
    """
    private.check(signs=signs)
    if output is not None and reference is not None:
        raise UsageError(
            "REF and --output can't be given together.", resolution="Leave one of them out."
        )
    if reference is not None:
        check_push_name(reference)
    with job(root) as work:
        found = _engine_image(work, image)
        name = reference or host_reference(work.settings, found.pin)
        if name is None and output is None:
            raise UsageError(
                "No registry is named to push to.",
                resolution="Add REF, or set [registry] address in /etc/provision/provision.toml.",
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
    """Print the name and the digest of an archive, and its signature."""
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
        ProvisionError: The image is not an artifact image.
    """
    found = find_image(work.engine, image)
    try:
        pin = Pin.model_validate_json(found.labels.get(PIN_LABEL, ""))
    except ValidationError as error:
        raise ProvisionError(
            f"'{image}' is not an artifact image: its label {PIN_LABEL} has no Pin.",
            resolution="Name an image that 'provision build' has built.",
        ) from error
    return EngineImage(work.engine, found.id, pin)


@click.command("key")
@click.argument("what", metavar="generate", type=click.Choice(["generate"]))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("provision"),
    show_default=True,
    metavar="NAME",
    help="Name of the files: NAME.key and NAME.pub.",
)
@click.option("--no-password", is_flag=True, help="Leave the private key unencrypted.")
@password_source
@options.as_json
def key_command(
    *, what: str, output: Path, no_password: bool, as_json: bool, source: PasswordSource
) -> None:
    """Generate a pair of keys: the private key signs images, and hosts verify with the public key.

    The file of the private key has mode 0600 and is encrypted with a password. The command never
    replaces an existing file.
    """
    del what
    if no_password and source.is_given:
        raise UsageError(
            "--no-password and a password can't be given together.",
            resolution="Leave one of them out.",
        )
    password = None if no_password else source.read("Password of the new key", confirm=True)
    private, public = generate_key(output, password)
    if as_json:
        print_json({"private": str(private), "public": str(public), "encrypted": not no_password})
        return
    print_fields([("private key", private), ("public key", public)])
    click.echo(f"Copy {public} to the hosts, into the folder that [trust] keys names.")


@click.command("sign")
@click.argument("image", metavar="IMAGE")
@signing_key
@options.root
@options.as_json
def sign_command(*, image: str, private: KeyOptions, root: Path, as_json: bool) -> None:
    """Add a signature to IMAGE, an artifact image in a registry.

    Name the image by its digest (NAME@sha256:…), as 'provision push' prints it: with a tag, the
    registry decides which image is signed. The signature covers the digest and the driver, version,
    flavour, distro, kernel and architecture of the Pin. The image also gets the tag of its Pin.
    """
    reference = parse_reference(image)
    with job(root) as work:
        signed = sign_image(work.settings, reference, private.signer(work.settings))
    if as_json:
        print_json(signed.document())
    else:
        print_signed(signed)


def print_signed(signed: SignedImage) -> None:
    """Print a signed image, for people."""
    facts = [(name, value) for name, value in asdict(signed.facts).items()]
    print_fields([("signed", signed.reference), ("signature", signed.signature), *facts])
