"""``provision ignition``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from provision.cli import options
from provision.cli.options import megabytes, print_json
from provision.cli.progress_display import shown
from provision.ignition.engine_files import Engine
from provision.ignition.machine import Variant
from provision.ignition.preparation import Options, Prepared, prepare
from provision.ignition.served_folder import BUTANE_FILE, CONFIG, Written, check_output, write

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
def command(*, wanted: Options, output: Path, dry_run: bool, as_json: bool) -> None:
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
        print_json(_document(prepared, written, output))
    elif written is None:
        click.echo(f"would write {output / CONFIG}, {output / BUTANE_FILE} and what they name")
    else:
        _print_written(written, output)


def _document(prepared: Prepared, written: Written | None, output: Path) -> dict[str, Any]:
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
