"""``provision status``, ``rollback`` and ``gc``: the artifacts of a host, used and unused."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from provision.agent.desired import load_desired
from provision.agent.garbage import Removed, remove_unneeded
from provision.agent.reconcile import look_at
from provision.agent.rollback import rollback, would_roll_back
from provision.agent.status import Status
from provision.cli import options
from provision.cli.options import megabytes, print_json
from provision.cli.reconciling import lazily_shown, print_result, result_document
from provision.errors import ExitCode, UsageError
from provision.files import in_root
from provision.host.kernels import find_kernels
from provision.store.layout import STORE

_SECONDS = 2.0


@click.command("status")
@click.option("--watch", is_flag=True, help="Show it until interrupted.")
@click.option(
    "--check",
    is_flag=True,
    help="End with 0 only if every driver works with this kernel and those that may boot next.",
)
@click.option(
    "--kubernetes", "node", metavar="NODE", help="Write it to a node's labels and events too."
)
@options.catalogue
@options.root
@options.as_json
def status_command(
    *,
    watch: bool,
    check: bool,
    node: str | None,
    catalogues: tuple[Path, ...],
    root: Path,
    as_json: bool,
) -> int:
    """Show how this host is: each driver, for the running kernel and those that may boot next."""
    root = root.resolve()
    if watch and node is not None:
        raise UsageError("--watch and --kubernetes can't be given together.")
    if as_json:
        status = _look(root, catalogues)
        _publish(status, node)
        print_json(status.document())
        return _checked(status) if check else ExitCode.DONE
    from provision.cli import display  # noqa: PLC0415 - takes a while to load

    if watch:
        display.watch(lambda: _look(root, catalogues), seconds=_SECONDS, sleep=time.sleep)
        return ExitCode.DONE
    status = _look(root, catalogues)
    _publish(status, node)
    display.show(status)
    return _checked(status) if check else ExitCode.DONE


def _publish(status: Status, node: str | None) -> None:
    if node is not None:
        # Few hosts are nodes, and the client takes a while to load.
        from provision.export.node_labels import publish  # noqa: PLC0415 - as above

        publish(status.document(), node)


def _checked(status: Status) -> int:
    """Return how the host is for someone who is about to reboot it."""
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

    Modules and user space change together. What is gone back from is not taken again before
    provision.toml asks for something else, or 'provision apply --retry'.
    """
    root = root.resolve()
    if dry_run:
        now, before = would_roll_back(root, driver)
        if as_json:
            print_json({"driver": driver, "from": now, "to": before, "dry_run": True})
        else:
            click.echo(f"{driver} would go back from {now} to {before}.")
        return ExitCode.DONE
    desired = load_desired(root)
    with lazily_shown(verbose=click.get_current_context().find_root().params["verbose"]) as shown:
        result = rollback(root, desired, driver, progress=shown)
    if as_json:
        print_json(result_document(result))
    else:
        print_result(result)
    return result.status.exit_code


@click.command("gc")
@click.option(
    "--images", is_flag=True, help="Remove provision's images too that the store has no use for."
)
@options.root
@options.dry_run
@options.as_json
def gc_command(*, images: bool, root: Path, dry_run: bool, as_json: bool) -> None:
    """Remove artifacts that no kernel needs: what the running and other bootable ones use stays.

    [policy] keep says how many more stay of each kernel, to roll back to. Of the package store
    goes what was of no use for 30 days, except what kernels of this host are built with; of the
    compatibility matrix, results that are older than a year.
    """
    root = root.resolve()
    gone: list[str] = []
    with lazily_shown(verbose=click.get_current_context().find_root().params["verbose"]) as shown:
        removed = remove_unneeded(root, load_desired(root), dry_run=dry_run, progress=shown)
        from provision.agent import build_garbage  # noqa: PLC0415 - loads the models of packages

        if images:
            gone = build_garbage.remove_images(root, removed, dry_run=dry_run, progress=shown)
        files = build_garbage.remove_packages(root, dry_run=dry_run)
        results = _remove_results(root, dry_run=dry_run)
    if as_json:
        found = [asdict(one) for one in removed]
        listed = [{"name": name, "size": size} for name, size in files]
        document = {"artifacts": found, "images": gone, "packages": listed, "matrix": results}
        print_json({**document, "dry_run": dry_run})
    else:
        _print_removed(removed, gone, files, results, dry_run=dry_run)


def _remove_results(root: Path, *, dry_run: bool) -> list[str]:
    """Remove results of ``matrix`` and ``prebuild`` that are too old to say anything."""
    folders = [in_root(root, STORE / name) for name in ("matrix", "prebuild")]
    folders = [folder for folder in folders if folder.is_dir()]
    if not folders:
        return []
    from provision.matrix.results import Results  # noqa: PLC0415 - loads the models of results

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
        click.echo(f"{verb} the matrix's result of {cell}: it is older than a year")
    if not removed and not images and not files and not results:
        click.echo("Nothing to remove.")
