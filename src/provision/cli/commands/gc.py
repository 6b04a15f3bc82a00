"""``provision gc``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from provision.agent.desired import load_desired
from provision.agent.garbage import Removed, remove_unneeded
from provision.cli import options
from provision.cli.options import megabytes, print_json
from provision.cli.reconciling import lazily_shown
from provision.files import in_root
from provision.host.kernels import find_kernels
from provision.store.layout import STORE


@click.command("gc")
@click.option(
    "--images", is_flag=True, help="Remove provision's images too that the store has no use for."
)
@options.root
@options.dry_run
@options.as_json
def command(*, images: bool, root: Path, dry_run: bool, as_json: bool) -> None:
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
        _print(removed, gone, files, results, dry_run=dry_run)


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


def _print(
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
