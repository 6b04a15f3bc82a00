"""Gives each artifact that a kernel may boot with its loader, which needs no Python."""

from __future__ import annotations

from pathlib import Path

from provision.agent.model import Desired, DesiredDriver
from provision.errors import ProvisionError
from provision.kmod.loader import is_written, write_loader
from provision.progress import Note, Progress
from provision.store.entries import linked_kernels
from provision.store.layout import Layout
from provision.store.locks import changing


def write_loaders(root: Path, desired: Desired, progress: Progress) -> None:
    """Write the loaders that are missing: of a new build, for other options, by an older provision.

    A loader that can't be written costs nothing now, so the run goes on.
    """
    for driver in desired.drivers:
        layout = Layout(root, driver.name)
        for digest in sorted(set(linked_kernels(layout).values())):
            entry = layout.entry(digest)
            if entry.is_dir() and not is_written(entry, driver.options, root=root):
                with changing(layout, progress):
                    give_loader(layout, digest, driver, progress)


def give_loader(layout: Layout, digest: str, driver: DesiredDriver, progress: Progress) -> None:
    """Write the loader of one artifact; the caller holds the driver's lock."""
    try:
        write_loader(layout.entry(digest), driver.options, root=layout.root)
    except (OSError, ProvisionError) as error:
        progress(Note(f"The loader of {driver.name} {digest} can't be written: {error}"))
