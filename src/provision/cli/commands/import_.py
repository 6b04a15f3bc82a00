"""``provision import``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from provision.cli import options
from provision.cli.options import print_fields, print_json
from provision.cli.target import job
from provision.pipeline.dkms_import import Imported, ImportRequest, import_dkms


@click.group("import")
def command() -> None:
    """Write a recipe from a driver's own description."""


@command.command("dkms")
@click.argument("what", metavar="PACKAGE|DIR|URL")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of drivers; the driver's folder is made in there.  [print the recipe]",
)
@click.option(
    "--kernel", metavar="RELEASE", help="Evaluate the dkms.conf for this kernel.  [the host's]"
)
@options.distro
@options.root
@options.as_json
def dkms(
    *,
    what: str,
    output: Path | None,
    kernel: str | None,
    distro: str | None,
    root: Path,
    as_json: bool,
) -> None:
    """Write the driver.toml of a source that has a dkms.conf.

    PACKAGE is one of the distro's archive, such as v4l2loopback-dkms; DIR a folder with the
    source; URL an archive of it. The dkms.conf is evaluated in a container without a network.
    """
    request = ImportRequest(what, kernel=kernel, distro=distro, output=output)
    with job(root) as work:
        made = import_dkms(work.settings, lambda: work.engine, request, progress=work.progress)
    if as_json:
        print_json(_document(made))
        return
    if made.file is None:
        click.echo(made.draft.text, nl=False)
        _notes(made, to_stderr=True)
        return
    print_fields(
        [
            ("wrote", made.file),
            ("modules", ", ".join(module.name for module in made.conf.modules)),
            ("for kernel", made.kernel),
        ]
    )
    _notes(made, to_stderr=False)
    click.echo(f"Try it: provision build {made.draft.name} --catalogue {made.file.parent.parent}")


def _notes(made: Imported, *, to_stderr: bool) -> None:
    click.echo("Look at what could not be found out:", err=to_stderr)
    for line in made.draft.unknown:
        click.echo(f"  {line}", err=to_stderr)
    if made.draft.ignored:
        click.echo("Left out of the build:", err=to_stderr)
    for line in made.draft.ignored:
        click.echo(f"  {line}", err=to_stderr)


def _document(made: Imported) -> dict[str, object]:
    conf = made.conf
    return {
        "name": made.draft.name,
        "version": conf.version,
        "kernel": made.kernel,
        "file": None if made.file is None else str(made.file),
        "recipe": made.draft.text,
        "modules": [asdict(module) for module in conf.modules],
        "exclusive": dict(conf.exclusive or {}),
        "unknown": list(made.draft.unknown),
        "ignored": list(made.draft.ignored),
    }
