"""``provision key`` and ``provision sign``: keys for images, and signatures with them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from provision.cli import options
from provision.cli.key_options import KeyOptions, PasswordSource, password_source, signing_key
from provision.cli.options import print_fields, print_json
from provision.cli.target import job
from provision.errors import UsageError
from provision.pipeline.image_archives import is_archive_name, sign_file
from provision.pipeline.image_signing import SignedImage, sign_image
from provision.registry.names import parse_reference
from provision.registry.private_key import generate_key


@click.command("key")
@click.argument("what", metavar="generate", type=click.Choice(["generate"]))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("provision"),
    show_default=True,
    metavar="NAME",
    help="The files are NAME.key and NAME.pub.",
)
@click.option("--no-password", is_flag=True, help="Leave the private key unencrypted.")
@password_source
@options.as_json
def key_command(
    *, what: str, output: Path, no_password: bool, as_json: bool, source: PasswordSource
) -> None:
    """Make a pair of keys for images: the private one signs, the public one goes to the hosts.

    The private key's file has mode 0600 and is encrypted with a password. Nothing that is there is
    replaced.
    """
    del what
    if no_password and source.is_given:
        raise UsageError("--no-password can't be given together with a password.")
    password = None if no_password else source.read("Password of the new key", confirm=True)
    private, public = generate_key(output, password)
    if as_json:
        print_json({"private": str(private), "public": str(public), "encrypted": not no_password})
        return
    print_fields([("private key", private), ("public key", public)])
    click.echo(f"Copy {public} to the hosts, into the folder that [trust] keys names.")


@click.command("sign")
@click.argument("image", metavar="IMAGE|FILE.tar")
@signing_key
@options.root
@options.as_json
def sign_command(*, image: str, private: KeyOptions, root: Path, as_json: bool) -> None:
    """Sign IMAGE, an artifact image of a registry or an archive, beside the signatures that it has.

    Give it by its digest (NAME@sha256:…), as 'provision push' prints it: by a tag, the registry
    decides what is signed. Signed are the digest, and what the image's Pin says: driver, version,
    flavour, distro, kernel and architecture. The tag of its Pin leads to it then, and the
    repository's catalogue lists it. Signatures of FILE.tar go to FILE.tar.sig beside it.
    """
    is_file = is_archive_name(image)
    reference = None if is_file else parse_reference(image)
    with job(root) as work:
        signer = private.signer(work.settings)
        if reference is None:
            signed = sign_file(work.settings, Path(image), signer)
        else:
            signed = sign_image(work.settings, reference, signer, progress=work.progress)
    if as_json:
        print_json(signed.document())
    else:
        print_signed(signed)


def print_signed(signed: SignedImage) -> None:
    """Print what was signed, for people."""
    facts = [(name, value) for name, value in asdict(signed.facts).items()]
    listed = [("catalogue", signed.catalogue)] if signed.catalogue is not None else []
    print_fields([("signed", signed.reference), ("signature", signed.signature), *facts, *listed])
