"""``provision base`` and ``provision host-python``: images and an interpreter to build on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.options import megabytes, print_fields, print_json
from provision.cli.target import job
from provision.hostpython import (
    DEFAULT_PREFIX,
    PythonPin,
    PythonRequest,
    make_python,
    plan_python,
)
from provision.pipeline.image_builds import ensure_base_image, wanted_base

_DISTRO = "debian:12"


@click.command("base")
@click.argument("distro", required=False, metavar="[ID:VERSION]")
@click.option("--replace", is_flag=True, help="Make it again although it is there.")
@options.root
@options.dry_run
@options.as_json
def base_command(
    *, distro: str | None, replace: bool, root: Path, dry_run: bool, as_json: bool
) -> None:
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


@click.command("host-python")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="PATH",
    help="The archive, or a folder for it.  [provision-python-VERSION-MACHINE.tar.gz, here]",
)
@click.option(
    "--distro",
    metavar="ID:VERSION",
    default=_DISTRO,
    show_default=True,
    help="Whose source and libraries; what hosts run does not matter.",
)
@click.option(
    "--prefix",
    metavar="DIR",
    default=DEFAULT_PREFIX,
    show_default=True,
    help="Where it will lie on hosts; it runs nowhere else.",
)
@click.option("--network", metavar="MODE", help="Network of the build, as 'docker build' takes it.")
@options.root
@options.dry_run
@options.as_json
def host_python_command(
    *,
    output: Path,
    distro: str,
    prefix: str,
    network: str | None,
    root: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a Python for hosts that have none, such as Fedora CoreOS and Flatcar.

    It is compiled from the distro's source, which is pinned by checksum, and packed with the C
    library and all else that it needs: one archive, to be unpacked at /.
    """
    request = PythonRequest(distro, prefix, output, network)
    with job(root) as work:
        if dry_run:
            planned = plan_python(
                work.settings, lambda: work.engine, request, progress=work.progress
            )
            what = {"path": str(planned.path), "dry_run": True, "would_build": planned.would_build}
            _print({**_document(planned.pin), **what}, as_json=as_json)
            return
        made = make_python(work.settings, lambda: work.engine, request, progress=work.progress)
    done = {"path": str(made.path), "sha256": made.sha256, "size": made.size, "built": made.built}
    _print({**_document(made.pin), **done}, as_json=as_json)


def _document(pin: PythonPin) -> dict[str, Any]:
    return {
        "version": pin.version,
        "package": pin.package,
        "distro": f"{pin.distro.id}:{pin.distro.version}",
        "machine": pin.architecture,
        "prefix": pin.prefix,
        "digest": pin.digest,
        "image": pin.image,
    }


def _print(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    shown = {**document, **({"size": megabytes(document["size"])} if "size" in document else {})}
    print_fields((name.replace("_", " "), value) for name, value in shown.items())
