"""Which artifact of a driver is for which kernel: one link a kernel, ``kernels/<release>``.

A link is set when its artifact is complete and verified, so a boot may follow it without asking
anybody.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from provision.files import switch_symlink, sync_directory
from provision.store.layout import Layout


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


_DIGITS = 12
