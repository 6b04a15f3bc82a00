"""The artifact store: entries that are complete once they have their name, and never change.

A link is set when its artifact is complete and verified, so a boot may follow it without asking
anybody.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from provision.errors import NotFoundError
from provision.files import in_root, switch_symlink, sync_directory
from provision.store.layout import Layout
from provision.store.locks import changing

_DIGITS = 12
_PARTIAL = ".partial-"
_REMOVED = ".removed-"
_ENTRY = "entry"
# Files that are made durable at once.
_SYNCS = 8


def link_kernel(layout: Layout, release: str, short_digest: str) -> bool:
    """Let a kernel use an artifact from now on; one rename.

    Returns:
        Whether anything changed.

    Raises:
        OSError: The store can't be written.
    """
    return switch_symlink(layout.kernel_link(release), f"../{short_digest}")


def unlink_kernel(layout: Layout, release: str) -> bool:
    """Forget which artifact a kernel uses; returns whether there was one."""
    link = layout.kernel_link(release)
    if not link.is_symlink():
        return False
    link.unlink()
    sync_directory(layout.kernels)
    return True


def linked_kernels(layout: Layout) -> dict[str, str]:
    """Return the short digest of the artifact of each kernel that has one, by release."""
    try:
        links = sorted(layout.kernels.iterdir())
    except OSError:
        return {}
    found = {}
    for link in links:
        # Names that begin with a dot are a killed run's; another process may remove any.
        with suppress(OSError):
            if link.is_symlink() and not link.name.startswith("."):
                found[link.name] = link.readlink().name
    return found


def entries(layout: Layout) -> tuple[str, ...]:
    """Return the short digests of all artifacts in a driver's part of the store."""
    try:
        folders = sorted(layout.folder.iterdir())
    except OSError:
        return ()
    return tuple(path.name for path in folders if is_entry(path))


def is_entry(path: Path) -> bool:
    """Return whether a path has the name of an artifact's folder, and is one."""
    name = path.name
    return (
        len(name) == _DIGITS
        and set(name) <= set("0123456789abcdef")
        and path.is_dir()
        and not path.is_symlink()
    )


def add(
    layout: Layout, short_digest: str, fill: Callable[[Path], None], *, replace: bool = False
) -> bool:
    """Add an entry; the driver's lock is held before and after it is filled, not meanwhile.

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
    if layout.entry(short_digest).is_dir() and not replace:
        return False
    with drafted(layout, short_digest, fill) as draft, changing(layout):
        return adopt(layout, short_digest, draft, replace=replace)


@contextmanager
def drafted(layout: Layout, short_digest: str, fill: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a folder that is filled and durable, for ``adopt``; it is removed if it is not taken.

    Filling takes a while, so no lock of the driver is held. What keeps the folder from being taken
    for one that a killed run left is a lock of its own, which ends with this process.

    Args and errors as ``add``.
    """
    with changing(layout):
        layout.folder.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{short_digest}-", dir=layout.folder))
        handle = _own(partial)
    draft = partial / _ENTRY
    try:
        fill(draft)
        sync_tree(draft)
        yield draft
    finally:
        try:
            shutil.rmtree(partial, ignore_errors=True)
        finally:
            os.close(handle)


def adopt(layout: Layout, short_digest: str, draft: Path, *, replace: bool) -> bool:
    """Make a draft the entry of its name; the caller holds the driver's lock.

    Returns:
        Whether anything changed: an entry that is there stays, unless it is to give way.

    Raises:
        OSError: The store can't be written.
    """
    entry = layout.entry(short_digest)
    if entry.exists():
        if not replace:
            return False
        # Not one step, as a folder can't be renamed over a full one; a run that is killed in
        # between leaves no entry, and the next one adds it.
        removed = layout.folder / f"{_REMOVED}{short_digest}"
        if removed.exists():
            shutil.rmtree(removed)
        entry.rename(removed)
    draft.rename(entry)
    sync_directory(layout.folder)
    remove_leftovers(layout)
    return True


def remove(layout: Layout, short_digest: str) -> int:
    """Remove an entry; the caller holds the driver's lock and knows that no one needs it.

    Returns:
        How many bytes that freed.

    Raises:
        OSError: The store can't be written.
    """
    entry = layout.entry(short_digest)
    found = (path.lstat() for path in entry.rglob("*") if not path.is_dir())
    # User space may be linked into other entries, which keep it.
    size = sum(status.st_size for status in found if status.st_nlink == 1)
    # Under another name first: half of an entry must not be taken for one.
    removed = layout.folder / f"{_REMOVED}{short_digest}"
    entry.rename(removed)
    sync_directory(layout.folder)
    shutil.rmtree(removed)
    return size


def remove_leftovers(layout: Layout) -> list[Path]:
    """Remove what killed runs left behind; the caller holds the driver's lock.

    All of it is made under that lock, but for the drafts of entries: one that a process is filling
    stays.

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
        (layout.folder, f".{layout.serials.name}.*"),
        (layout.kernels, ".*"),
        *(
            (in_root(layout.root, path.parent.relative_to(layout.root)), f".{path.name}.*")
            for path in (layout.vendor_config, layout.loader_config, layout.modprobe_config)
        ),
    ]
    found = [path for folder, pattern in patterns for path in sorted(folder.glob(pattern))]
    leftovers = [path for path in found if not _is_owned(path)]
    for path in leftovers:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return leftovers


def current_entry(layout: Layout) -> Path:
    """Return the folder of the artifact in use.

    Raises:
        NotFoundError: It is missing.
    """
    entry = layout.linked(layout.current)
    if entry is None:
        raise NotFoundError(
            f"The driver '{layout.driver}' is not installed under '{layout.root}'.",
            resolution=f"Install it: provision install {layout.driver}",
        )
    return entry


def sync_tree(folder: Path) -> None:
    """Make a folder with everything in it durable, so that its rename may follow."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - takes time that a run with nothing to do doesn't pay

    paths = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    # Several at once: the file system writes its journal once for all of them.
    with ThreadPoolExecutor(_SYNCS) as pool:
        list(pool.map(_sync_file, (path for path in paths if not path.is_symlink())))
    for parent, _folders, _names in os.walk(folder):
        sync_directory(Path(parent))


def _sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _own(folder: Path) -> int:
    """Lock a folder for as long as this process lives or keeps the descriptor."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def _is_owned(path: Path) -> bool:
    """Return whether a process is filling a draft."""
    if not path.name.startswith(_PARTIAL) or not path.is_dir():
        return False
    try:
        handle = _own(path)
    except BlockingIOError:
        return True
    os.close(handle)
    return False
