"""``doctor``, ``units``, ``gc`` and ``uninstall``: a host in order, and as it was before."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import click

from provision.agent.desired import load_desired
from provision.agent.hold import settle
from provision.agent.model import Desired
from provision.agent.removal import collect, uninstall
from provision.cli import options
from provision.cli.options import command, option
from provision.cli.output import coloured, each, emit, lines, megabytes, members, progress, remark
from provision.config import load
from provision.doctor import State, diagnose, observe
from provision.errors import ExitCode, ProvisionError
from provision.files import documentation_url, glob_in_root, in_root, templates_dir
from provision.host import STORE
from provision.host.facts import find_engines, read_facts
from provision.progress import Note, report
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

_WELL = {"ok", "not-applicable"}


@command("doctor")
def doctor_command(
    *,
    with_ok: bool = option(
        "--all", "Also show the checks that found nothing wrong or nothing to look at."
    ),
    root: Path = options.root,
) -> None:
    """Check this host for common problems with drivers, and explain causes and cures.

    The command changes nothing. The exit code is 1 if a check fails, and 3 if there is no
    driver or something could not be checked.
    """
    host = observe(root)
    checks = diagnose(host)
    states = Counter[State](check.state for check in checks)
    code = ExitCode.NOT_FOUND if states["unknown"] or not host.drivers else ExitCode.DONE
    emit(
        {"checks": checks, "states": states},
        each("checks", lambda one: _check(one) if with_ok or one["state"] not in _WELL else ()),
        ", ".join(f"{states[state]} {state}" for state in get_args(State) if states[state]),
        code=ExitCode.FAILED if states["fail"] else code,
    )


def _check(check: Mapping[str, Any]) -> Iterator[str]:
    state = coloured(check["state"], f"{check['state']:<7}")
    driver = f" ({check['driver']})" if check["driver"] else ""
    head = f"{state} {click.style(check['check'], bold=True)}{driver}"
    for name, said in (("seen", head), ("cause", "        cause"), ("cure", "        cure")):
        first, *more = (check[name] or "").splitlines() or [""]
        yield from [f"{said}: {first}"] if first else []
        yield from (f"          {line}" for line in more)


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


@command("gc")
def gc_command(
    *,
    images: bool = option(
        "--images", "Also remove the artifact images that the store does not need."
    ),
    root: Path = options.root,
    dry_run: bool = options.dry_run,
) -> None:
    """Remove artifacts that no bootable kernel needs.

    [policy] keep sets how many older artifacts of each kernel stay for a rollback. The command also
    removes packages that were not used for 30 days, unless a kernel of this host needs them, and
    images of compilers and headers of that age or for kernels that are gone.
    """
    root = root.resolve()
    with progress():
        gone = collect(root, load_desired(root), images=images, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    total = megabytes(sum(size for _name, size in gone.files))
    emit(
        {
            "artifacts": gone.artifacts,
            "images": gone.images,
            "packages": [{"name": name, "size": size} for name, size in gone.files],
            "dry_run": dry_run,
        },
        each("artifacts", lambda one: [f"{verb} {_artifact(one)}: {one['reason']}"]),
        lines("images", f"{verb} the image {{}}"),
        lambda _: (
            [f"{verb} {len(gone.files)} files of the package store ({total})"] if gone.files else []
        ),
        lambda _: [] if gone.artifacts or gone.images or gone.files else ["Nothing to remove."],
    )


def _artifact(removed: Mapping[str, Any]) -> str:
    size = f" ({megabytes(removed['size'])})" if removed["size"] is not None else ""
    return f"{removed['driver']} {removed['digest']}{size}"


@command("uninstall")
def uninstall_command(
    *,
    images: bool = option(
        "--images", "Also remove the engine's images of artifacts, compilers and headers."
    ),
    replace: bool = options.replace_files,
    root: Path = options.root,
    dry_run: bool = options.dry_run,
) -> None:
    """Remove all drivers, units and files that provision made on this host.

    The program itself, provision.toml, and keys stay; files in provision's folders that others made
    are listed. Modules in use stay loaded until a reboot; the exit code is then 4. What no record
    or name shows to be provision's own stays.
    """
    root = root.resolve()
    with progress():
        done = uninstall(root, images=images, replace=replace, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    changed = [*done.paths, *done.images]
    emit(
        {
            "changed": bool(changed) and not dry_run,
            **members(done, "paths", "images", "kept"),
            "reboot_required": done.needs_reboot,
            "dry_run": dry_run,
        },
        lines("paths", f"{verb} {{}}"),
        lines("images", f"{verb} the image {{}}"),
        lines("kept", "stays, because provision did not make it: {}"),
        lambda _: [] if changed else ["Nothing to remove."],
        code=ExitCode.IN_USE if done.needs_reboot else ExitCode.DONE,
    )
