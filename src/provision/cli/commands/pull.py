"""``provision pull``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from provision.cli import options
from provision.cli.options import print_fields, print_json
from provision.cli.target import Job, job, trusting
from provision.errors import NotFoundError, UsageError
from provision.pin import Pin
from provision.pipeline.image_archives import is_archive_name, open_archive
from provision.pipeline.pin_file import load_pin
from provision.pipeline.pulling import Pulled, store_pulled
from provision.pipeline.registries import Consent, connect, examine
from provision.pipeline.registry_search import Lookup, seek_pin
from provision.registry.artifact_images import Trusted
from provision.registry.names import parse_reference
from provision.registry.repository import Repository


@click.command("pull")
@click.argument("image", metavar="[IMAGE|FILE.tar]", required=False)
@click.option(
    "--pin",
    "pin_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="In place of IMAGE: what the registry of provision.toml has of this Pin, which 'provision"
    " resolve --output' wrote.",
)
@click.option("--replace", is_flag=True, help="Pull it although the store has it.")
@trusting
@options.root
@options.dry_run
@options.as_json
def command(
    *,
    image: str | None,
    pin_file: Path | None,
    replace: bool,
    consent: Consent,
    root: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Put the artifact of IMAGE, an image of a registry or archive, into the host's store.

    Its signature is verified, and it is not put to use: 'provision install IMAGE' does that too. No
    engine is needed.
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
                work.settings, trusted, consent, must_replace=replace, progress=work.progress
            )
    if as_json:
        print_json(_document(trusted, pulled))
    else:
        _print(trusted, pulled)


def _repository(work: Job, image: str) -> Repository:
    """Open what has an image: an archive, or a registry."""
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
        "received": pulled.received if pulled else 0,
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
