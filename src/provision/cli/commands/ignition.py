"""``provision host-python`` and ``ignition``: the first boot of hosts that have no Python."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from provision.cli import options
from provision.cli.display import shown
from provision.cli.job import job
from provision.cli.options import megabytes, print_fields, print_json
from provision.hostpython import (
    DEFAULT_PREFIX,
    PythonPin,
    PythonRequest,
    make_python,
    plan_python,
)
from provision.ignition.engine_files import Engine
from provision.ignition.machine import Variant
from provision.ignition.preparation import Options, Prepared, prepare
from provision.ignition.served_folder import BUTANE_FILE, CONFIG, Written, check_output, write

_DISTRO = "debian:12"


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
            _print_python({**_python_document(planned.pin), **what}, as_json=as_json)
            return
        made = make_python(work.settings, lambda: work.engine, request, progress=work.progress)
    done = {"path": str(made.path), "sha256": made.sha256, "size": made.size, "built": made.built}
    _print_python({**_python_document(made.pin), **done}, as_json=as_json)


def _python_document(pin: PythonPin) -> dict[str, Any]:
    return {
        "version": pin.version,
        "package": pin.package,
        "distro": f"{pin.distro.id}:{pin.distro.version}",
        "machine": pin.architecture,
        "prefix": pin.prefix,
        "digest": pin.digest,
        "image": pin.image,
    }


def _print_python(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    shown = {**document, **({"size": megabytes(document["size"])} if "size" in document else {})}
    print_fields((name.replace("_", " "), value) for name, value in shown.items())


_FILE = click.Path(dir_okay=False, path_type=Path)
_ANY = click.Path(path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
# A checkout that provision runs from is what most people want on their machines.
_CHECKOUT = Path(__file__).resolve().parents[4]


# Options that say what a machine should get.
_wanted = options.option_group(
    "wanted",
    Options,
    click.option("--config", type=_FILE, required=True, help="Its provision.toml."),
    click.option(
        "--url",
        metavar="BASE",
        required=True,
        help="Where machines will find the output folder.",
    ),
    click.option(
        "--variant",
        type=click.Choice(get_args(Variant)),
        default="fcos",
        show_default=True,
        help="What runs on it.",
    ),
    click.option("--python", type=_FILE, required=True, help="Archive of 'provision host-python'."),
    click.option(
        "--hook", type=_FILE, help="The program oci-decorator.  [containers get no drivers]"
    ),
    click.option(
        "--engine",
        "engines",
        type=click.Choice(get_args(Engine)),
        multiple=True,
        help="Engine that gets to know it; may be given more than once.  [the distro's]",
    ),
    click.option(
        "--docker-config",
        type=_FILE,
        help="A daemon.json of yours, into which the runtime is entered.",
    ),
    click.option(
        "--docker-default",
        is_flag=True,
        help="Let all of Docker's containers have the runtime.",
    ),
    click.option(
        "--bundle", type=_FILE, help="Archive of wheels that Ansible made.  [one is made]"
    ),
    click.option(
        "--source",
        type=_ANY,
        default=_CHECKOUT,
        metavar="PATH",
        help="Checkout, or wheel of provision, to make it from.  [this checkout]",
    ),
    click.option("--wheelhouse", type=_FOLDER, help="Folder of wheels.  [the package index]"),
    click.option(
        "--expect",
        multiple=True,
        metavar="PATH",
        help="File that provision.toml names and your own configuration puts there; may be"
        " given more than once.",
    ),
)


@click.command("ignition")
@_wanted
@click.option(
    "--output", type=_FOLDER, required=True, metavar="DIR", help="Folder that is to be served."
)
@options.dry_run
@options.as_json
def ignition_command(*, wanted: Options, output: Path, dry_run: bool, as_json: bool) -> None:
    """Make what Fedora CoreOS or Flatcar needs at its first boot to get provision and drivers.

    DIR gets config.ign, the files that it makes machines fetch from BASE, and provision.bu, which
    takes it into a configuration of yours.
    """
    check_output(output)
    prepared = prepare(wanted)
    written = None
    if not dry_run:
        with shown(verbose=False) as progress:
            written = write(prepared, output, progress=progress)
    if as_json:
        print_json(_ignition_document(prepared, written, output))
    elif written is None:
        click.echo(f"would write {output / CONFIG}, {output / BUTANE_FILE} and what they name")
    else:
        _print_written(written, output)


def _ignition_document(prepared: Prepared, written: Written | None, output: Path) -> dict[str, Any]:
    return {
        "output": str(output),
        "variant": prepared.variant,
        "python": ".".join(map(str, prepared.python.version)),
        "machine": prepared.python.machine,
        "environment": written.environment if written else None,
        "config": asdict(written.config) if written else None,
        "files": [asdict(served) for served in written.files] if written else [],
        "changed": written is not None and written.changed,
        "dry_run": written is None,
    }


def _print_written(written: Written, output: Path) -> None:
    for served in written.files:
        click.echo(f"{output / served.name}  {megabytes(served.size)}")
    for name in (CONFIG, BUTANE_FILE):
        click.echo(f"{output / name}")
    click.echo(f"Serve them at {written.config.url.rpartition('/')[0]}.")
