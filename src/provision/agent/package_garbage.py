"""Removes packages and closures from the package store that no build of this host needs."""

from __future__ import annotations

from pathlib import Path

from provision.build.package_store import PackageStore
from provision.distros.debian import default_cache
from provision.host.kernels import find_kernels

# What was of no use for so long is had again where it is needed: from its addresses.
UNUSED_DAYS = 30.0


def remove_packages(
    root: Path, *, state: Path | None = None, dry_run: bool = False
) -> list[tuple[str, int]]:
    """Remove what was of no use for 30 days, except for kernels that this host may boot.

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
    store = PackageStore(state or default_cache())
    return store.collect(kernels, days=UNUSED_DAYS, dry_run=dry_run)
