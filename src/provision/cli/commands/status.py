"""``provision status``, ``rollback`` and ``gc``, and how all commands of the agent print a run.

This module imports nothing that takes long to load.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.agent.conclusion import Result
from provision.agent.desired import load_desired
from provision.agent.model import Outcome
from provision.agent.reconcile import look_at
from provision.agent.rollback import rollback, would_roll_back
from provision.agent.status import NAME_A_DRIVER, Status
from provision.cli import options
from provision.cli.options import megabytes, print_json
from provision.errors import ExitCode
from provision.files import in_root
from provision.host.folders import STORE
from provision.host.kernels import find_kernels
from provision.progress import Event, Progress

if TYPE_CHECKING:
    from provision.agent.garbage import Removed

_SECONDS = 2.0


@click.command("status")
@click.option("--watch", is_flag=True, help="Show the status repeatedly, until interrupted.")
@click.option(
    "--check",
    is_flag=True,
    help="Exit with 0 only if every driver works with this kernel and those that may boot next.",
)
@options.catalogue
@options.root
@options.as_json
def status_command(
    *,
    watch: bool,
    check: bool,
    catalogues: tuple[Path, ...],
    root: Path,
    as_json: bool,
) -> int:
    """Show the state of each driver, for the running kernel and those that may boot next."""
    root = root.resolve()
    if as_json:
        status = _look(root, catalogues)
        print_json(status.document())
        return _exit_code(status, check=check)
    from provision.cli import display  # noqa: PLC0415 - takes a while to load

    if watch:
        display.watch(lambda: _look(root, catalogues), seconds=_SECONDS, sleep=time.sleep)
        return ExitCode.DONE
    status = _look(root, catalogues)
    display.show(status)
    return _exit_code(status, check=check)


def _exit_code(status: Status, *, check: bool) -> int:
    """Return whether there is anything to report; with ``check``, whether a reboot is safe."""
    if status.state == "not-configured":
        return ExitCode.NOT_FOUND
    if not check:
        return ExitCode.DONE
    is_ready = all(artifact.is_ready for driver in status.drivers for artifact in driver.kernels)
    return status.exit_code or (ExitCode.DONE if is_ready else ExitCode.FAILED)


def _look(root: Path, catalogues: tuple[Path, ...]) -> Status:
    _planned, status = look_at(root, load_desired(root, catalogues=catalogues))
    return status


@click.command("rollback")
@click.argument("driver")
@options.root
@options.dry_run
@options.as_json
def rollback_command(*, driver: str, root: Path, dry_run: bool, as_json: bool) -> int:
    """Go back to the artifact of DRIVER that the running kernel used before.

    Modules and user space change together. The rejected artifact is not used again until
    provision.toml asks for another one, or until 'provision apply --retry'.
    """
    root = root.resolve()
    desired = load_desired(root)
    if dry_run:
        now, before = would_roll_back(root, desired, driver)
        if as_json:
            print_json({"driver": driver, "from": now, "to": before, "dry_run": True})
        else:
            click.echo(f"{driver} would go back from {now} to {before}.")
        return ExitCode.DONE
    with lazily_shown(verbose=click.get_current_context().find_root().params["verbose"]) as shown:
        result = rollback(root, desired, driver, progress=shown)
    if as_json:
        print_json(result_document(result))
    else:
        print_result(result)
    return result.status.exit_code


@click.command("gc")
@click.option(
    "--images", is_flag=True, help="Also remove the artifact images that the store does not need."
)
@options.root
@options.dry_run
@options.as_json
def gc_command(*, images: bool, root: Path, dry_run: bool, as_json: bool) -> None:
    """Remove artifacts that no bootable kernel needs.

    [policy] keep sets how many older artifacts of each kernel stay for a rollback. The command also
    removes packages that were not used for 30 days, unless a kernel of this host needs them, and
    results of the compatibility matrix that are older than a year.
    """
    root = root.resolve()
    gone: list[str] = []
    with lazily_shown(verbose=click.get_current_context().find_root().params["verbose"]) as shown:
        from provision.agent import garbage  # noqa: PLC0415 - loads the models of packages

        removed = garbage.remove_unneeded(root, load_desired(root), dry_run=dry_run, progress=shown)
        if images:
            gone = garbage.remove_images(root, removed, dry_run=dry_run, progress=shown)
        files = garbage.remove_packages(root, dry_run=dry_run)
        results = _remove_results(root, dry_run=dry_run)
    if as_json:
        found = [asdict(one) for one in removed]
        listed = [{"name": name, "size": size} for name, size in files]
        document = {"artifacts": found, "images": gone, "packages": listed, "matrix": results}
        print_json({**document, "dry_run": dry_run})
    else:
        _print_removed(removed, gone, files, results, dry_run=dry_run)


def _remove_results(root: Path, *, dry_run: bool) -> list[str]:
    """Remove results of ``matrix`` and ``prebuild`` that are older than a year."""
    folders = [in_root(root, STORE / name) for name in ("matrix", "prebuild")]
    folders = [folder for folder in folders if folder.is_dir()]
    if not folders:
        return []
    from provision.fleet.matrix.results import Results  # noqa: PLC0415 - loads the models of results

    kernels = find_kernels(root).bootable
    removed = [Results(one).collect(kernels, dry_run=dry_run) for one in folders]
    return [name for found in removed for name, _size in found]


def _print_removed(
    removed: list[Removed],
    images: list[str],
    files: list[tuple[str, int]],
    results: list[str],
    *,
    dry_run: bool,
) -> None:
    verb = "would remove" if dry_run else "removed"
    for one in removed:
        size = f" ({megabytes(one.size)})" if one.size is not None else ""
        click.echo(f"{verb} {one.driver} {one.digest}{size}: {one.reason}")
    for image in images:
        click.echo(f"{verb} the image {image}")
    if files:
        size = megabytes(sum(size for _name, size in files))
        click.echo(f"{verb} {len(files)} files of the package store ({size})")
    for cell in results:
        click.echo(f"{verb} the matrix result of {cell}: it is older than a year")
    if not removed and not images and not files and not results:
        click.echo("Nothing to remove.")


_COLOURS = {"ready": "green", "pending": "cyan", "reboot-required": "yellow"}


@contextmanager
def lazily_shown(*, verbose: bool) -> Iterator[Progress]:
    """Yield a progress that shows its events; the first event loads rich, which draws them."""
    opened: list[Any] = []

    def progress(event: Event) -> None:
        if not opened:
            from provision.cli.display import shown  # noqa: PLC0415 - loads rich

            display = shown(verbose=verbose)
            opened.extend([display, display.__enter__()])
        opened[1](event)

    try:
        yield progress
    finally:
        if opened:
            opened[0].__exit__(*sys.exc_info())


def result_document(result: Result) -> dict[str, Any]:
    """Return the document of 'provision apply --json'."""
    return {
        "changed": any(outcome.error is None for outcome in result.outcomes),
        "actions": [_outcome(outcome) for outcome in result.outcomes],
        "status": result.status.document(),
        "problems": list(result.problems),
        **_error(result.status),
    }


def _error(status: Status) -> dict[str, Any]:
    """Return the member ``error`` that every failed command has; empty after a success."""
    if status.error is not None:
        return {"error": asdict(status.error)}
    artifacts = [
        (driver.name, artifact) for driver in status.drivers for artifact in driver.kernels
    ]
    bad = [
        (name, artifact)
        for name, artifact in artifacts
        if artifact.state not in {"ready", "pending"}
    ]
    if status.exit_code == ExitCode.DONE or not bad:
        return {}
    name, worst = bad[0]
    return {
        "error": {
            "message": f"{name} for {worst.release} is {worst.state}: {worst.reason}",
            "resolution": worst.resolution,
            "details": worst.failure.details if worst.failure else None,
            "exit_code": status.exit_code,
        }
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    error = outcome.error
    return {
        "kind": outcome.action.kind,
        "driver": outcome.action.driver,
        "kernel": outcome.action.kernel,
        "reason": outcome.action.reason,
        "result": outcome.result,
        "seconds": round(outcome.seconds, 3),
        "error": None
        if error is None
        else {
            "message": error.message,
            "resolution": error.resolution,
            "details": error.details,
            "exit_code": int(error.exit_code),
        },
    }


def print_result(result: Result) -> None:
    """Print the state of the host after a run, for people and the journal."""
    status = result.status
    for driver in status.drivers:
        for note in driver.notes:
            _echo(f"{driver.name}: {note}", is_bad=True)
    if status.state == "not-configured":
        click.echo(f"Nothing is configured. {NAME_A_DRIVER}")
        return
    if not result.outcomes and status.state == "ready":
        click.echo("Nothing to do.")
        return
    for driver in status.drivers:
        for artifact in driver.kernels:
            text = f"{driver.name} for {artifact.release}: {_coloured(artifact.state)}"
            text = f"{text}, {artifact.version}" if artifact.version else text
            _echo(text, is_bad=artifact.state not in _COLOURS)
            details = artifact.failure.details if artifact.failure else None
            _print_reason(artifact.reason, details, artifact.resolution)
    if status.error is not None:
        error = status.error
        _echo(f"{_coloured('failed')}: {error.message}", is_bad=True)
        _print_reason(None, error.details, error.resolution)


def _echo(text: str, *, is_bad: bool) -> None:
    """Print a line, which the journal of a unit keeps as an error if something is bad.

    Source: sd-daemon(3).
    """
    if is_bad and (journal := os.environ.get("JOURNAL_STREAM")):
        output = os.fstat(sys.stdout.fileno())
        if journal == f"{output.st_dev}:{output.st_ino}":
            text = f"<3>{text}"
    click.echo(text)


def _print_reason(reason: str | None, details: str | None, resolution: str | None) -> None:
    for line in [*([reason] if reason else []), *(details or "").splitlines()]:
        click.echo(f"  {line}")
    if resolution:
        click.echo(f"  What to do: {resolution}")


def _coloured(state: str) -> str:
    """Return a state in its colour, which click leaves out of files and pipes."""
    return click.style(state, fg=_COLOURS.get(state, "red"), bold=True)
