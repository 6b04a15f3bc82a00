"""``provision units``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from provision.cli import options
from provision.cli.display import shown
from provision.cli.options import print_json
from provision.config import load
from provision.errors import ProvisionError
from provision.files import glob_in_root, in_root, lock
from provision.host.facts import find_engines, read_facts
from provision.host.folders import STORE
from provision.progress import Note, Progress
from provision.shipped import documentation_url, templates_dir
from provision.store.artifacts import activate_entry
from provision.store.confinement import require_label, require_visible
from provision.store.entries import current_entry
from provision.store.layout import Layout
from provision.store.locks import SWITCH_SECONDS
from provision.store.managed_files import Change
from provision.store.units import (
    PACKAGED_UNITS,
    UNITS,
    UnitFile,
    UnitSettings,
    apply_units,
    kernel_hooks,
    own_program,
    plan_units,
    unit_files,
)

_WAITING = "Another provision is writing units; waiting for it"
_FLATCAR = "flatcar"
_PACKAGED = (
    f"The distro's package has installed the units in /{PACKAGED_UNITS}; use 'systemctl enable' and"
    " 'disable' for them. With --program, units for another program override them."
)
_PAGE = "how-to/keep-drivers-loaded.md"
_BOOT = "provision-boot.service"
_INSTALLED = "/opt/provision/venv/share/provision/docs"


@click.command("units")
@click.option("--remove", is_flag=True, help="Disable and remove the units and hooks.")
@click.option(
    "--program",
    metavar="PATH",
    help="Path of 'provision' on the host.  [this one, or /opt/provision/bin/provision]",
)
@options.replace_files
@options.root
@options.dry_run
@options.as_json
def command(
    *, remove: bool, program: str | None, replace: bool, root: Path, dry_run: bool, as_json: bool
) -> None:
    """Install and enable the systemd units and kernel hooks that keep drivers working.

    The units load drivers at boot, prepare them for newly installed kernels, and regularly bring
    the host to the state that provision.toml describes. They write CDI specifications unless [cdi]
    generate = false. On Flatcar, with [policy] hold_updates, they hold back an update of the system
    until the drivers build for its kernel.

    The program must lie outside of home directories and of /tmp, where the units can run it. If a
    package of the distro has installed the units, there is nothing to do.
    """
    root = root.resolve()
    is_packaged = program is None and in_root(root, PACKAGED_UNITS / _BOOT).is_file()
    if is_packaged and not remove:
        click.echo(_PACKAGED, err=True)
    # Units of an earlier run would override those of the package.
    without = remove or is_packaged
    files = (
        [] if without else _files(root, program or own_program(root, sys.argv[0]), dry_run=dry_run)
    )
    if dry_run:
        changes = plan_units(root, files, replace=replace)
    else:
        path = in_root(root, STORE / ".units/.lock")
        with (
            shown(verbose=False) as progress,
            lock(path, on_wait=lambda: progress(Note(_WAITING)), limit=SWITCH_SECONDS),
        ):
            changes = plan_units(root, files, replace=replace)
            apply_units(root, changes, on_change=lambda change: progress(Note(str(change))))
            _hide_in_tree_copies(root, progress)
    if as_json:
        _print_json(root, changes, dry_run=dry_run)
    elif not changes:
        click.echo("Nothing to do.")
    elif dry_run:
        for change in changes:
            click.echo(f"would {change}")


def _hide_in_tree_copies(root: Path, progress: Progress) -> None:
    """Activate drivers again: copies of their modules are blacklisted while the boot loads them."""
    for path in glob_in_root(root, f"{STORE}/*/current"):
        layout = Layout(root, path.parent.name)
        try:
            activate_entry(layout, current_entry(layout), progress=progress)
        except ProvisionError as error:
            progress(Note(f"{layout.driver}: {error.message}"))


def _files(root: Path, program: str, *, dry_run: bool) -> list[UnitFile]:
    """Render the units and hooks for a program, which the units must be able to start."""
    files = unit_files(
        templates_dir(),
        UnitSettings(
            program=program,
            documentation=_documentation(root),
            hooks=kernel_hooks(root),
            with_gate=_holds_updates(root),
            with_cdi=load(root).cdi.generate,
            wants_podman=_builds_with_podman(root),
        ),
    )
    units = [(file.path.name, file.text) for file in files if file.path.parent == UNITS]
    require_visible(root, program, units, checkout=_checkout())
    if not dry_run:
        require_label(root, program, checkout=_checkout())
    return files


def _checkout() -> Path | None:
    """Return the clone that this program runs from; None: it is installed."""
    folder = templates_dir().parent
    return folder if (folder / "pyproject.toml").is_file() else None


def _holds_updates(root: Path) -> bool:
    return load(root).policy.hold_updates and read_facts(root).distro.id == _FLATCAR


def _builds_with_podman(root: Path) -> bool:
    host = load(root).engine.host
    if host is not None:
        return host.endswith("/podman/podman.sock")
    return {engine.name for engine in find_engines(root)} & {"docker", "podman"} == {"podman"}


def _documentation(root: Path) -> str:
    # Another root has its own documentation, not that of this machine.
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
