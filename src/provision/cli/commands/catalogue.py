"""``provision catalogue``."""

from __future__ import annotations

from pathlib import Path

import click

from provision.cli import options
from provision.cli.key_options import KeyOptions, signing_key
from provision.cli.options import print_fields, print_json
from provision.cli.target import job
from provision.errors import ProvisionError, UsageError
from provision.pipeline.publishing import CatalogueUpdate, keep_list
from provision.pipeline.registries import connect
from provision.registry.names import CATALOGUE, parse_reference


@click.command("catalogue")
@click.argument("driver")
@click.option(
    "--registry",
    "address",
    metavar="HOST[:PORT][/PREFIX]",
    help="Where it is.  [[registry] address of provision.toml]",
)
@click.option(
    "--replace",
    "again",
    is_flag=True,
    help="Make it of the images that there are, whatever it says and anyone who signed it.",
)
@signing_key
@options.root
@options.as_json
def command(
    *,
    driver: str,
    address: str | None,
    again: bool,
    private: KeyOptions,
    root: Path,
    as_json: bool,
) -> None:
    """Bring a registry's catalogue of DRIVER up to date, and sign it.

    Pushes that sign keep it. This is for images that were signed by another program, for another
    key, and for when images were removed. It lists images that have the tag of their Pin and a
    signature that counts here, by [trust] keys or by the key that signs.
    """
    with job(root) as work:
        where = address or work.settings.config.registry.address
        if where is None:
            raise UsageError(
                "There is no registry whose catalogue could be written.",
                resolution="Give --registry, or set [registry] address in"
                " /etc/provision/provision.toml.",
            )
        client = connect(work.settings, parse_reference(f"{where}/{driver}:{CATALOGUE}"))
        signer = private.signer(work.settings)
        update = CatalogueUpdate(driver, again=again)
        known = keep_list(work.settings, client, signer, update, progress=work.progress)
    if known is None:
        raise ProvisionError(
            f"The catalogue of {driver} was not written: no public key is known by which its images"
            " could be verified.",
            resolution="Name the folder of public keys: [trust] keys in"
            " /etc/provision/provision.toml.",
        )
    if as_json:
        document = {"serial": known.serial, "images": len(known.entries)}
        print_json({"catalogue": str(client.reference), **document})
        return
    fields = [("serial", known.serial), ("images", len(known.entries))]
    print_fields([("catalogue", client.reference), *fields])
