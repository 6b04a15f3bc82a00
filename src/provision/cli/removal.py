"""``gc`` and ``uninstall``: what a host no longer needs, and all that provision made there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision.agent.desired import load_desired
from provision.agent.garbage import collect
from provision.agent.removal import uninstall
from provision.cli import options
from provision.cli.options import command, option
from provision.cli.output import each, emit, lines, megabytes, members, progress
from provision.errors import ExitCode


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
