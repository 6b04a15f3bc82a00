"""``provision units``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from provision.catalogue import documentation_url, templates_dir
from provision.cli import options
from provision.cli.output import print_json
from provision.cli.progress import shown
from provision.config import load
from provision.files import lock
from provision.host import read_facts
from provision.install.layout import STORE
from provision.install.ledger import Change
from provision.install.units import (
    apply_units,
    has_kernel_hooks,
    own_program,
    plan_units,
    unit_files,
)
from provision.progress import Note

_FLATCAR = "flatcar"
_PAGE = "how-to/keep-drivers-loaded.md"
_INSTALLED = "/opt/provision/venv/share/provision/docs"


@click.command("units")
@click.option("--remove", is_flag=True, help="Disable and remove them.")
@click.option(
    "--program",
    metavar="PATH",
    help="Where 'provision' is on the host.  [this one, or /opt/provision/bin/provision]",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Replace files that somebody else wrote or changed (a copy is kept).",
)
@options.root
@options.dry_run
@options.as_json
def command(
    *, remove: bool, program: str | None, replace: bool, root: Path, dry_run: bool, as_json: bool
) -> None:
    """Install and enable the systemd units that keep drivers in place, and the kernel hooks.

    They load drivers at boot, build for kernels that were installed, and see to it regularly that
    the host is what provision.toml says. On Flatcar, with [policy] hold_updates, an update of the
    system is held as long as drivers don't build for its kernel.
    """
    root = root.resolve()
    files = (
        []
        if remove
        else unit_files(
            templates_dir(),
            program=program or own_program(root, sys.argv[0]),
            documentation=_documentation(root),
            with_hooks=has_kernel_hooks(root),
            with_gate=_holds_updates(root),
        )
    )
    if dry_run:
        changes = plan_units(root, files, replace=replace)
    else:
        with shown(verbose=False) as progress, lock(root / STORE / ".units/.lock"):
            changes = plan_units(root, files, replace=replace)
            apply_units(root, changes, on_change=lambda change: progress(Note(str(change))))
    if as_json:
        _print_json(root, changes, dry_run=dry_run)
    elif not changes:
        click.echo("Nothing to do.")
    elif dry_run:
        for change in changes:
            click.echo(f"would {change}")


def _holds_updates(root: Path) -> bool:
    return load(root).policy.hold_updates and read_facts(root).distro.id == _FLATCAR


def _documentation(root: Path) -> str:
    # Another root will have what is installed there, not what lies on this machine.
    return documentation_url(_PAGE) if root == Path("/") else f"file://{_INSTALLED}/{_PAGE}"


def _print_json(root: Path, changes: list[Change], *, dry_run: bool) -> None:
    print_json(
        {
            "root": str(root),
            "changed": bool(changes) and not dry_run,
            "changes": [
                {"kind": change.kind, "path": str(change.path), "what": str(change)}
                for change in changes
            ],
            "dry_run": dry_run,
        }
    )
