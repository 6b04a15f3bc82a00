"""``provision install``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.output import print_json
from provision.cli.target import Job, Target, building, job, target
from provision.pipeline.artifacts import Installed, install_image
from provision.pipeline.images import BuildSettings, build_image
from provision.pipeline.resolution import Wanted


@click.command("install")
@click.argument("what", metavar="IMAGE|DRIVER")
@target
@building
@click.option(
    "--replace",
    is_flag=True,
    help="Unpack an artifact anew, and replace files that somebody else wrote (a copy is kept).",
)
@options.dry_run
@options.as_json
def command(
    *,
    what: str,
    root: Path,
    catalogues: tuple[Path, ...],
    replace: bool,
    dry_run: bool,
    as_json: bool,
    target: Target,
    how: BuildSettings,
) -> None:
    """Put an artifact into the host's store and switch to it.

    With IMAGE, that image's artifact; with DRIVER, what 'provision build' would build, built first
    if need be. What is installed already is left alone.
    """
    with job(root, catalogues) as work:
        is_image = ":" in what or "/" in what
        image = what if is_image else _image_of(work, target.of(what), how, dry_run=dry_run)
        result = install_image(
            work.settings,
            work.engine,
            image,
            replace=replace,
            dry_run=dry_run,
            progress=work.progress,
        )
    if as_json:
        print_json(_document(result, root=root, dry_run=dry_run))
    else:
        _print(result, dry_run=dry_run)


def _image_of(work: Job, wanted: Wanted, how: BuildSettings, *, dry_run: bool) -> str:
    resolved = work.resolve(wanted)
    if dry_run:
        return resolved.pin.image
    return build_image(work.settings, work.engine, resolved, how, progress=work.progress).image


def _document(result: Installed, *, root: Path, dry_run: bool) -> dict[str, Any]:
    pin = result.manifest.pin
    return {
        "driver": pin.driver.name,
        "version": pin.driver.version,
        "kernel": pin.kernel.release,
        "digest": pin.digest,
        "root": str(root),
        "entry": str(result.entry),
        "changed": bool(result.changes) and not dry_run,
        "changes": [
            {"kind": change.kind, "path": str(change.path), "what": str(change)}
            for change in result.changes
        ],
        "dry_run": dry_run,
    }


def _print(result: Installed, *, dry_run: bool) -> None:
    pin = result.manifest.pin
    what = f"{pin.driver.name} {pin.driver.version} for {pin.kernel.release}"
    if not result.changes:
        click.echo(f"{what} is installed already; nothing changed.")
        return
    if dry_run:
        for change in result.changes:
            click.echo(f"would {change}")
        return
    click.echo(f"{what} is installed in {result.entry}.")
