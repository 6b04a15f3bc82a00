"""The artifact store: entries that are complete once they have their name, and never change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from provision.errors import NotFoundError
from provision.files import sync_directory
from provision.install.layout import Layout

_PARTIAL = ".partial-"
_REMOVED = ".removed-"


def add(
    layout: Layout, short_digest: str, fill: Callable[[Path], None], *, replace: bool = False
) -> bool:
    """Add an entry; the caller holds the driver's lock.

    Args:
        layout: The driver's places.
        short_digest: The entry's name.
        fill: Makes the folder that it is given and fills it; whatever it raises ends the
            addition, and nothing stays behind.
        replace: Whether an entry of that name gives way; it does so when the new one is complete.

    Returns:
        Whether anything changed.

    Raises:
        OSError: The store can't be written, or the disk is full.
    """
    entry = layout.entry(short_digest)
    if entry.is_dir() and not replace:
        return False
    layout.folder.mkdir(parents=True, exist_ok=True)
    partial = layout.folder / f"{_PARTIAL}{short_digest}"
    try:
        fill(partial)
        sync_tree(partial)
        if entry.exists():
            # Not one step, as a folder can't be renamed over a full one; a run that is killed in
            # between leaves no entry, and the next one adds it.
            removed = layout.folder / f"{_REMOVED}{short_digest}"
            entry.rename(removed)
        partial.rename(entry)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(layout.folder)
    remove_leftovers(layout)
    return True


def remove(layout: Layout, short_digest: str) -> int:
    """Remove an entry; the caller holds the driver's lock and knows that nobody needs it.

    Returns:
        How many bytes that freed.

    Raises:
        OSError: The store can't be written.
    """
    entry = layout.entry(short_digest)
    size = sum(path.lstat().st_size for path in entry.rglob("*") if not path.is_dir())
    # Under another name first: half of an entry must not be taken for one.
    removed = layout.folder / f"{_REMOVED}{short_digest}"
    entry.rename(removed)
    sync_directory(layout.folder)
    shutil.rmtree(removed)
    return size


def remove_leftovers(layout: Layout) -> list[Path]:
    """Remove what killed runs left behind; the caller holds the driver's lock.

    Returns:
        What was removed.
    """
    patterns = [
        (layout.folder, f"{_PARTIAL}*"),
        (layout.folder, f"{_REMOVED}*"),
        (layout.folder, f".{layout.current.name}.*"),
        (layout.folder, f".{layout.previous.name}.*"),
        (layout.folder, f".{layout.record.name}.*"),
        (layout.folder, f".{layout.state.name}.*"),
        (layout.kernels, ".*"),
        (layout.vendor_config.parent, f".{layout.vendor_config.name}.*"),
        (layout.loader_config.parent, f".{layout.loader_config.name}.*"),
        (layout.modprobe_config.parent, f".{layout.modprobe_config.name}.*"),
    ]
    leftovers = [path for folder, pattern in patterns for path in sorted(folder.glob(pattern))]
    for path in leftovers:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return leftovers


def current_entry(layout: Layout) -> Path:
    """Return the folder of the artifact in use.

    Raises:
        NotFoundError: There is none.
    """
    if not layout.current.is_dir():
        raise NotFoundError(
            f"The driver '{layout.driver}' is not installed under '{layout.root}'.",
            resolution=f"Install it: provision install {layout.driver}",
        )
    return layout.current.resolve()


def sync_tree(folder: Path) -> None:
    """Make a folder with everything in it durable, so that its rename may follow."""
    for parent, _folders, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        sync_directory(Path(parent))
