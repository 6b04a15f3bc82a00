"""``provision install``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.output import print_json
from provision.cli.target import Job, Target, building, gathering, job, target
from provision.pipeline.artifacts import Installed, install_image
from provision.pipeline.images import BuildSettings, build_image
from provision.pipeline.registry import usable_image
from provision.pipeline.resolution import Wanted


@dataclass(frozen=True, slots=True)
class Consent:
    """What the user allows besides what is always done."""

    replace: bool
    allow_unsigned: bool


def consent(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that allow something; they arrive as ``allowed: Consent``."""
    gathered = options.allow_unsigned(gathering(command, "allowed", Consent))
    return click.option(
        "--replace",
        is_flag=True,
        help="Unpack an artifact again, and replace foreign files (a copy is kept).",
    )(gathered)


@click.command("install")
@click.argument("what", metavar="IMAGE|DRIVER")
@target
@building
@consent
@options.dry_run
@options.as_json
def command(
    *,
    what: str,
    root: Path,
    catalogues: tuple[Path, ...],
    allowed: Consent,
    dry_run: bool,
    as_json: bool,
    target: Target,
    how: BuildSettings,
) -> None:
    """Put an artifact into the host's store and switch to it.

    With IMAGE, that image's artifact; with DRIVER, what 'provision build' would build, built first
    if need be. What is installed already is left alone.

    An image whose name begins with a registry's host is pulled if the engine lacks it. All other
    names are local; one that the engine lacks is looked for in the registry of provision.toml,
    if that names one.
    """
    with job(root, catalogues) as work:
        is_image = ":" in what or "/" in what
        if is_image:
            image = usable_image(
                work.settings,
                work.engine,
                what,
                allow_unsigned=allowed.allow_unsigned,
                progress=work.progress,
            )
        else:
            image = _image_of(work, target.of(what), how, dry_run=dry_run)
        result = install_image(
            work.settings,
            work.engine,
            image,
            replace=allowed.replace,
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
