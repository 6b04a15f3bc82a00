"""``units``: the systemd units and kernel hooks."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from provision.agent.hold import settle
from provision.agent.model import Desired
from provision.cli import options
from provision.cli.options import command, option
from provision.cli.output import emit, lines, progress, remark
from provision.config import load
from provision.errors import ProvisionError
from provision.files import glob_in_root, in_root
from provision.host import STORE
from provision.host.facts import find_engines, read_facts
from provision.progress import Note, report
from provision.shipped import documentation_url, templates_dir
from provision.store.activate import activate_entry
from provision.store.entries import current_entry
from provision.store.layout import Layout, switching
from provision.store.units import (
    PACKAGED_UNITS,
    UnitFile,
    UnitSettings,
    change_units,
    kernel_hooks,
    own_program,
    plan_units,
    require_label,
    require_visible,
    unit_files,
)
from provision.trust import require_trusted

_FLATCAR = "flatcar"
_PACKAGED = (
    f"The distro's package has installed the units in /{PACKAGED_UNITS}; use 'systemctl enable' and"
    " 'disable' for them. With --program, units for another program override them."
)
_PAGE = "how-to/keep-drivers-loaded.md"
_BOOT = "provision-boot.service"
_INSTALLED = "/opt/provision/venv/share/provision/docs"


@click.group("units", cls=options.Group)
def units() -> None:
    """Install or remove the systemd units and kernel hooks that keep drivers working."""


@command("install", units)
def install(
    *,
    program: str | None = option(
        "--program PATH",
        "Path of 'provision' on the host.  [this one, or /opt/provision/bin/provision]",
    ),
    replace: bool = options.replace_files,
    root: Path = options.root,
    dry_run: bool = options.dry_run,
) -> None:
    """Install and enable the systemd units and kernel hooks that keep drivers working.

    The units load drivers at boot, prepare them for newly installed kernels, and regularly bring
    the host to the state that provision.toml describes. They write CDI specifications unless [cdi]
    generate = false. On Flatcar, with [policy] hold_kernels, they hold back an update of the system
    until the drivers build for its kernel.

    The program must lie outside of home directories and of /tmp, where the units can run it. If a
    package of the distro has installed the units, there is nothing to do.
    """
    root = root.resolve()
    if program is None and in_root(root, PACKAGED_UNITS / _BOOT).is_file():
        remark(_PACKAGED)
        # Units of an earlier run would override those of the package.
        files = []
    else:
        files = _files(root, program or own_program(root, sys.argv[0]), dry_run=dry_run)
    _write(root, files, replace=replace, dry_run=dry_run)


@command("remove", units)
def remove(
    *,
    replace: bool = options.replace_files,
    root: Path = options.root,
    dry_run: bool = options.dry_run,
) -> None:
    """Disable and remove the units and hooks, and give the boot loader's default back.

    That is held where [policy] hold_kernels is set, and no unit would give it back any more.
    """
    root = root.resolve()
    if not dry_run:
        with switching(root):
            settle(root, Desired(), None)
    _write(root, [], replace=replace, dry_run=dry_run)


def _write(root: Path, files: list[UnitFile], *, replace: bool, dry_run: bool) -> None:
    """Have exactly these units and hooks on a host."""
    if dry_run:
        changes = plan_units(root, files, replace=replace)
    else:
        with progress():
            changes = change_units(root, files, replace=replace)
            _hide_in_tree_copies(root)
    emit(
        {
            "root": root,
            "changed": bool(changes) and not dry_run,
            "changes": [{"kind": c.kind, "path": c.path, "what": str(c)} for c in changes],
            "dry_run": dry_run,
        },
        lines("changes", "would {what}") if dry_run and changes else lambda _: (),
        lambda _: () if changes else ["Nothing to do."],
    )


def _hide_in_tree_copies(root: Path) -> None:
    """Activate drivers again: copies of their modules are blacklisted while the boot loads them."""
    for path in glob_in_root(root, f"{STORE}/*/current"):
        layout = Layout(root, path.parent.name)
        try:
            activate_entry(layout, current_entry(layout))
        except ProvisionError as error:
            report(Note(f"{layout.driver}: {error.message}"))


def _files(root: Path, program: str, *, dry_run: bool) -> list[UnitFile]:
    """Render the units and hooks for a program, which the units must be able to start."""
    config = load(root)
    files = unit_files(
        templates_dir(),
        UnitSettings(
            program=program,
            # Another root has its own documentation, not that of this machine.
            documentation=documentation_url(_PAGE)
            if root == Path("/")
            else f"file://{_INSTALLED}/{_PAGE}",
            hooks=kernel_hooks(root),
            with_gate=config.policy.hold_kernels and read_facts(root).distro.id == _FLATCAR,
            with_cdi=config.cdi.generate,
            wants_podman=_builds_with_podman(root, config.engine.host),
        ),
    )
    # A clone that this program runs from; None: it is installed.
    folder = templates_dir().parent
    checkout = folder if (folder / "pyproject.toml").is_file() else None
    require_visible(root, program, checkout=checkout)
    require_trusted(in_root(root, program))
    if not dry_run:
        require_label(root, program, checkout=checkout)
    return files


def _builds_with_podman(root: Path, host: str | None) -> bool:
    if host is not None:
        return host.endswith("/podman/podman.sock")
    return {engine.name for engine in find_engines(root)} & {"docker", "podman"} == {"podman"}
