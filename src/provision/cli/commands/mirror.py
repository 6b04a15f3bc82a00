"""``provision mirror``."""

from __future__ import annotations

from pathlib import Path

import click

from provision.cli import options
from provision.cli.options import megabytes, print_json
from provision.cli.tables import print_table
from provision.cli.target import job, trusting
from provision.fleet.mirror import Mirrored, mirror, require_all
from provision.fleet.mirror_selection import ImageSelection, RegistryAccess, total_size
from provision.pipeline.registries import Consent

# Options that say which artifacts are meant.
selecting = options.option_group(
    "selection",
    ImageSelection,
    click.option(
        "--driver",
        "drivers",
        multiple=True,
        metavar="NAME",
        help="A driver; may be given more than once.  [those of the catalogue]",
    ),
    click.option(
        "--kernel",
        "kernels",
        multiple=True,
        metavar="RELEASE",
        help="A kernel, or a pattern ('6.1.0-*'); may be given more than once.  [all]",
    ),
    click.option(
        "--distro",
        "distros",
        multiple=True,
        metavar="ID:VERSION",
        help="A distro, such as debian:12; may be given more than once.  [all]",
    ),
)


@click.command("mirror")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@selecting
@trusting
@options.catalogue
@options.root
@options.dry_run
@options.as_json
def command(
    *,
    old: str,
    new: str,
    selection: ImageSelection,
    consent: Consent,
    catalogues: tuple[Path, ...],
    root: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Copy artifact images with their signatures from the registry OLD to NEW.

    Both are HOST[:PORT][/PREFIX]. Each image is verified with the keys of provision.toml before it
    is copied, and keeps its digest and all of its names. What NEW has is not sent again.
    """
    with job(root, catalogues) as work:
        access = RegistryAccess(work.settings, consent, progress=work.progress)
        done = mirror(access, old, new, selection, dry_run=dry_run)
    if as_json:
        if done.refused and not dry_run:
            require_all(done)
        print_json(_document(done, old, new, dry_run=dry_run))
        return
    _print(done, dry_run=dry_run)
    require_all(done)


def _document(done: Mirrored, old: str, new: str, *, dry_run: bool) -> dict[str, object]:
    return {
        "old": old,
        "new": new,
        "images": [one.document() for one in done.chosen],
        "size": total_size(done.chosen),
        "sent": done.sent,
        "blobs": done.blobs,
        "present": done.present,
        "refused": done.refused,
        "changed": done.blobs > 0,
        "dry_run": dry_run,
    }


def _print(done: Mirrored, *, dry_run: bool) -> None:
    rows = [(one.driver, ", ".join(one.tags), megabytes(one.size)) for one in done.chosen]
    print_table(("driver", "names", "size>"), rows)
    whole = megabytes(total_size(done.chosen))
    if dry_run:
        click.echo(f"Would be copied: {len(done.chosen)} of {whole}.")
        return
    click.echo(
        f"Copied: {len(done.chosen)} of {whole}. Blobs sent: {done.blobs}, {megabytes(done.sent)};"
        f" there before: {done.present}."
    )
