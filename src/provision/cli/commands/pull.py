"""``provision pull``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from provision.cli import options
from provision.cli.output import print_fields, print_json
from provision.cli.target import believing, job
from provision.pipeline.archived import is_archive_name, open_archive
from provision.pipeline.pulling import Pulled, store_pulled
from provision.pipeline.registry import Consent, connect, examine
from provision.registry.images import Trusted
from provision.registry.names import parse_reference
from provision.registry.repository import Repository


@click.command("pull")
@click.argument("image", metavar="IMAGE|FILE.tar")
@click.option("--replace", is_flag=True, help="Pull it although the store has it.")
@believing
@options.root
@options.dry_run
@options.as_json
def command(
    *, image: str, replace: bool, consent: Consent, root: Path, dry_run: bool, as_json: bool
) -> None:
    """Put the artifact of IMAGE, an image of a registry or archive, into the host's store.

    It is believed by its signature, and not put to use: 'provision install IMAGE' does that too. No
    engine is needed.
    """
    with job(root) as work:
        client: Repository
        if is_archive_name(image):
            client = open_archive(work.settings, Path(image), progress=work.progress)
        else:
            client = connect(work.settings, parse_reference(image))
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
