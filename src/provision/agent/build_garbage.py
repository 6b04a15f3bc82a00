"""Removes what builds left and this host no longer needs: packages, logs, locks, engine images."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing, nullcontext, suppress
from pathlib import Path

from provision.agent.garbage import Removed, kept_digests
from provision.build.package_store import PackageStore
from provision.distros.debian import default_cache
from provision.errors import ProvisionError
from provision.files import in_root, remove_lock
from provision.host.kernels import find_kernels
from provision.matrix.results import Results, matrix_folder
from provision.pipeline.lazy_builds import open_engine
from provision.pipeline.workspace import load_settings
from provision.progress import Note, Progress, silent
from provision.store.layout import STORE
from provision.store.locks import building

# What is needed again after that is downloaded again.
UNUSED_DAYS = 30.0
_DAY_S = 24 * 3600.0


def remove_packages(
    root: Path, *, state: Path | None = None, dry_run: bool = False
) -> list[tuple[str, int]]:
    """Remove what was not used for 30 days, except what kernels of this host need.

    Logs that a result of the compatibility matrix or of a fleet's builds names stay as long as it
    does. A lock goes only if no process holds it.

    Args:
        root: Root of the host.
        state: Folder of provision's own state; None: the usual one.
        dry_run: Only say what would be removed.

    Returns:
        Names of the files, and their sizes in bytes.

    Raises:
        OSError: The store can't be written.
    """
    kernels = find_kernels(root).bootable
    folder = state or default_cache()
    removed = PackageStore(folder).collect(kernels, days=UNUSED_DAYS, dry_run=dry_run)
    removed += _remove_logs(folder / "logs", _named_logs(root), dry_run=dry_run)
    return removed + _remove_locks(folder / "locks", dry_run=dry_run)


def _named_logs(root: Path) -> frozenset[str]:
    """Return the logs that results of ``matrix`` and ``prebuild`` name."""
    folders = (matrix_folder(root), in_root(root, STORE / "prebuild"))
    known = [result for folder in folders for result in Results(folder).load()[0]]
    return frozenset(result.log for result in known if result.log)


def _remove_logs(folder: Path, needed: frozenset[str], *, dry_run: bool) -> list[tuple[str, int]]:
    removed = []
    for path, size in _unused(folder, "*.log"):
        if str(path) in needed:
            continue
        if not dry_run:
            path.unlink(missing_ok=True)
        removed.append((path.name, size))
    return removed


def _remove_locks(folder: Path, *, dry_run: bool) -> list[tuple[str, int]]:
    """Remove lock files, each of which is of one build or closure only."""
    return [
        (path.name, size) for path, size in _unused(folder, "*") if dry_run or remove_lock(path)
    ]


def _unused(folder: Path, pattern: str) -> list[tuple[Path, int]]:
    """Return the files of a folder that are older than the limit, and their sizes in bytes."""
    oldest = time.time() - UNUSED_DAYS * _DAY_S
    found = []
    for path in sorted(folder.glob(pattern)):
        # Others work here too.
        with suppress(FileNotFoundError):
            status = path.lstat()
            if path.is_file() and not path.is_symlink() and status.st_mtime < oldest:
                found.append((path, status.st_size))
    return found


_PREFIX = "provision/"
_DIGITS = 12


def remove_images(
    root: Path, removed: Iterable[Removed], *, dry_run: bool = False, progress: Progress = silent
) -> list[str]:
    """Remove artifact images whose artifacts are not in the store, and return their names.

    Images that carry another name too, or that a container uses, stay.

    Args:
        root: Root of the host.
        removed: The artifacts that were removed just now, or would be.
        dry_run: Only say what would be done.
        progress: Receives what is done.

    Raises:
        NotFoundError: No engine answers.
        ProvisionError: The engine failed.
    """
    # Loads the engine's SDK.
    from provision.build.artifact_image import DIGEST_LABEL  # noqa: PLC0415 - only for images

    gone = []
    # An image that an agent has just built is not in the store yet.
    waiting = nullcontext() if dry_run else building(root, progress)
    with waiting, closing(open_engine(load_settings(root))) as engine:
        kept = kept_digests(root) - {one.digest for one in removed}
        for image in engine.images_with_label(DIGEST_LABEL):
            digest = image.labels[DIGEST_LABEL].removeprefix("sha256:")[:_DIGITS]
            is_ours = len(image.tags) == 1 and image.tags[0].startswith(_PREFIX)
            if digest in kept or not is_ours:
                continue
            if not dry_run:
                try:
                    engine.remove(image.id, with_parents=True)
                except ProvisionError as error:
                    progress(Note(f"{image.tags[0]} stays: {error.details or error.message}"))
                    continue
            gone.append(image.tags[0])
    return gone
