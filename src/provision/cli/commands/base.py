"""``provision base``."""

from __future__ import annotations

from pathlib import Path

import click

from provision.cli import options
from provision.cli.output import print_json
from provision.cli.target import job
from provision.pipeline.building import ensure_base_image, wanted_base


@click.command("base")
@click.argument("distro", required=False, metavar="[ID:VERSION]")
@click.option("--replace", is_flag=True, help="Make it anew although it is there.")
@options.root
@options.dry_run
@options.as_json
def command(*, distro: str | None, replace: bool, root: Path, dry_run: bool, as_json: bool) -> None:
    """Make the base image of a distro, such as debian:12.

    An image that is there stays; one that can be pulled is pulled; otherwise debootstrap, dnf or
    zypper of this machine makes it from the distro's own packages. A base image that was made again
    leads to new Pins.
    """
    with job(root) as work:
        if dry_run:
            request = wanted_base(work.settings, distro)
            exists = work.engine.image(request.name) is not None and not replace
            _print_dry_run(request.name, exists=exists, as_json=as_json)
            return
        pin, made = ensure_base_image(
            work.settings, work.engine, distro, replace=replace, progress=work.progress
        )
    if as_json:
        print_json({"image": pin.image, "digest": pin.digest, "made": made})
    else:
        click.echo(f"{pin.image} {pin.digest} {'made' if made else 'is there'}")


def _print_dry_run(image: str, *, exists: bool, as_json: bool) -> None:
    if as_json:
        print_json({"image": image, "made": False, "dry_run": True, "would_make": not exists})
    else:
        click.echo(f"{image} {'is there' if exists else 'would be pulled or made'}")
