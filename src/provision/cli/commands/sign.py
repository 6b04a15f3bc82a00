"""``provision sign``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from provision.cli import options
from provision.cli.keys import KeyOptions, signing_key
from provision.cli.output import print_fields, print_json
from provision.cli.target import job
from provision.pipeline.archived import is_archive_name, sign_file
from provision.pipeline.image_signing import SignedImage, sign_image
from provision.registry.names import parse_reference


@click.command("sign")
@click.argument("image", metavar="IMAGE|FILE.tar")
@signing_key
@options.root
@options.as_json
def command(*, image: str, private: KeyOptions, root: Path, as_json: bool) -> None:
    """Sign IMAGE, an artifact image of a registry or an archive, beside the signatures that it has.

    Give it by its digest (NAME@sha256:…), as 'provision push' prints it: by a tag, the registry
    decides what is signed. Signed are the digest, and what the image's Pin says: driver, version,
    flavour, distro, kernel and architecture. Signatures of FILE.tar go to FILE.tar.sig beside it.
    """
    is_file = is_archive_name(image)
    reference = None if is_file else parse_reference(image)
    with job(root) as work:
        if reference is None:
            signed = sign_file(work.settings, Path(image), private.signer(work.settings))
        else:
            signed = sign_image(work.settings, reference, private.signer(work.settings))
    if as_json:
        print_json(signed.document())
    else:
        print_signed(signed)


def print_signed(signed: SignedImage) -> None:
    """Print what was signed, for people."""
    facts = [(name, value) for name, value in asdict(signed.facts).items()]
    print_fields([("signed", signed.reference), ("signature", signed.signature), *facts])
