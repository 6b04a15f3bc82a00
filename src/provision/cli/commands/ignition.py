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
from provision.export.host_python import (
    DEFAULT_PREFIX,
    PythonPin,
    PythonRequest,
    find_image,
    make_python,
    resolve_python,
)
from provision.export.ignition.engine_files import Engine
from provision.export.ignition.machine import Variant
from provision.export.ignition.preparation import Options, Prepared, prepare
from provision.export.ignition.served_folder import (
    BUTANE_FILE,
    CONFIG,
    Written,
    check_output,
    write,
)

_DISTRO = "debian:12"


@click.command("host-python")
@click.option(
    "--output",
    type=options.OUTPUT,
    default=Path(),
    metavar="PATH",
    help="Archive to write, or a folder for it.  [provision-python-VERSION-MACHINE.tar.gz, here]",
)
@click.option(
    "--distro",
    metavar="ID:VERSION",
    default=_DISTRO,
    show_default=True,
    help="Distro of the packages; hosts may run any other.",
)
@click.option(
    "--prefix",
    metavar="DIR",
    default=DEFAULT_PREFIX,
    show_default=True,
    help="Folder of this Python on hosts; it runs nowhere else.",
)
@click.option(
    "--network",
    metavar="MODE",
    help="Network of the container that downloads, as 'docker run' takes it.",
)
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

    The command takes Python from the distro's packages and packs it with the C library and
    everything else that it needs into one archive. Unpack it at /.
    """
    request = PythonRequest(distro, prefix, output, network)
    with job(root) as work:
        if dry_run:
            pin = resolve_python(
                work.settings, lambda: work.engine, request, progress=work.progress
            )
            would_build = find_image(work.engine, pin) is None
            what = {"path": str(request.path(pin)), "dry_run": True, "would_build": would_build}
            _print_python({**_python_document(pin), **what}, as_json=as_json)
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
# By default, machines get the checkout that this provision runs from.
_CHECKOUT = Path(__file__).resolve().parents[4]


# Options for the content of a machine.
_machine = options.option_group(
    "machine",
    Options,
    click.option("--config", type=_FILE, required=True, help="provision.toml of the machine."),
    click.option(
        "--url",
        metavar="BASE",
        required=True,
        help="Address under which machines reach the output folder.",
    ),
    click.option(
        "--variant",
        type=click.Choice(get_args(Variant)),
        default="fcos",
        show_default=True,
        help="Distro of the machine.",
    ),
    click.option("--python", type=_FILE, required=True, help="Archive of 'provision host-python'."),
    click.option("--hook", type=_FILE, help="Program oci-decorator.  [containers get no drivers]"),
    click.option(
        "--engine",
        "engines",
        type=click.Choice(get_args(Engine)),
        multiple=True,
        help="Engine to configure for it; may be given more than once.  [the distro's]",
    ),
    click.option(
        "--docker-config",
        type=_FILE,
        help="Your daemon.json, to which the runtime is added.",
    ),
    click.option(
        "--docker-default",
        is_flag=True,
        help="Make the runtime the default for all of Docker's containers.",
    ),
    click.option("--bundle", type=_FILE, help="Archive of wheels that Ansible made.  [a new one]"),
    click.option(
        "--source",
        type=_ANY,
        default=_CHECKOUT,
        metavar="PATH",
        help="Checkout or wheel of provision, to make the archive from.  [this checkout]",
    ),
    click.option("--wheelhouse", type=_FOLDER, help="Folder of wheels.  [the package index]"),
    click.option(
        "--expect",
        multiple=True,
        metavar="PATH",
        help="File that provision.toml names and that your own configuration writes; may be"
        " given more than once.",
    ),
)


@click.command("ignition")
@_machine
@click.option(
    "--output",
    type=_FOLDER,
    required=True,
    metavar="DIR",
    help="Folder to write, which you then serve.",
)
@options.dry_run
@options.as_json
def ignition_command(*, machine: Options, output: Path, dry_run: bool, as_json: bool) -> None:
    """Make the files that give Fedora CoreOS or Flatcar its drivers at the first boot.

    The command writes config.ign to DIR, the files that machines fetch from BASE, and provision.bu,
    which merges config.ign into your own configuration.
    """
    check_output(output)
    prepared = prepare(machine)
    written = None
    if not dry_run:
        with shown(verbose=False) as progress:
            written = write(prepared, output, progress=progress)
    if as_json:
        print_json(_ignition_document(prepared, written, output))
    elif written is None:
        click.echo(f"would write {output / CONFIG}, {output / BUTANE_FILE} and the files they name")
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
