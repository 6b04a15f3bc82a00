"""Removes artifacts that no kernel needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision.agent.contents import read_contents
from provision.agent.model import Desired
from provision.agent.reconcile import held
from provision.errors import NotFoundError
from provision.files import lock
from provision.host.kernels import Kernels, find_kernels
from provision.install.kernels import entries, linked_kernels, unlink_kernel
from provision.install.layout import STORE, Layout
from provision.install.state import DriverState, load_state, store_state
from provision.install.store import remove, remove_leftovers
from provision.progress import Note, Progress, silent


@dataclass(frozen=True, slots=True)
class Stock:
    """What a store has of a driver.

    Attributes:
        entries: Release of the kernel of each artifact, by short digest, the newest first; None:
            its manifest can't be read.
        links: Short digest by kernel.
        current: The artifact in use.
        state: What is remembered.
    """

    entries: Mapping[str, str | None]
    links: Mapping[str, str]
    current: str | None = None
    state: DriverState = field(default_factory=DriverState)


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed, or would be.

    Attributes:
        driver: Of which driver.
        digest: Short digest of the artifact.
        kernel: The kernel that it is for; None: nobody knows.
        reason: Why nobody needs it.
        size: Bytes that this freed; None: it was not done.
    """

    driver: str
    digest: str
    kernel: str | None
    reason: str
    size: int | None = None


def unneeded(stock: Stock, bootable: Iterable[str], *, keep: int) -> dict[str, str]:
    """Return which artifacts can go, with the reason. Pure.

    Whatever a kernel that may be booted uses stays, and for each of them some older artifacts to
    go back to.

    Args:
        stock: What there is.
        bootable: The kernels that may be booted.
        keep: How many more to keep of each kernel.
    """
    kernels = set(bootable)
    needed = {digest for release, digest in stock.links.items() if release in kernels}
    needed |= {stock.current} if stock.current else set()
    # A driver that is out of use has no links: nothing is kept to go back to.
    for release in kernels & stock.links.keys():
        before = stock.state.of(release).previous
        spare = [d for d, kernel in stock.entries.items() if kernel == release and d not in needed]
        # What the kernel used last comes first, then the newest.
        spare.sort(key=lambda digest: digest != before)
        needed |= set(spare[:keep])
    return {
        digest: _reason(kernel, kernels)
        for digest, kernel in stock.entries.items()
        if digest not in needed
    }


def collect(
    root: Path, desired: Desired, *, dry_run: bool = False, progress: Progress = silent
) -> list[Removed]:
    """Remove the artifacts that no kernel of a host needs.

    Args:
        root: Root of the host.
        desired: What it should have; its policy says how many artifacts to keep.
        dry_run: Only say what would be done.
        progress: Told what is done.

    Raises:
        NotFoundError: The host has no kernel, so nobody can tell what is needed.
        OSError: The store can't be written.
    """
    kernels = find_kernels(root)
    if not kernels.installed and kernels.running is None:
        raise NotFoundError(
            f"There is no kernel under '{root}', so nobody can tell which artifacts are needed.",
            resolution="Look whether /lib/modules is there.",
        )
    removed: list[Removed] = []
    with held(root, progress):
        for layout in _stored(root):
            removed += _collect(layout, kernels, desired.keep, dry_run=dry_run, progress=progress)
    return removed


def kept_digests(root: Path) -> set[str]:
    """Return the short digests of all artifacts in a host's store."""
    return {digest for layout in _stored(root) for digest in entries(layout)}


def _stored(root: Path) -> list[Layout]:
    """Return the drivers that the store has anything of."""
    layouts = [Layout(root, path.name) for path in sorted((root / STORE).glob("[!.]*"))]
    return [layout for layout in layouts if entries(layout) or linked_kernels(layout)]


def _collect(
    layout: Layout, kernels: Kernels, keep: int, *, dry_run: bool, progress: Progress
) -> list[Removed]:
    found = unneeded(stock := _stock(layout), kernels.bootable, keep=keep)
    removed = [
        Removed(layout.driver, digest, stock.entries[digest], reason)
        for digest, reason in found.items()
    ]
    if dry_run:
        return removed
    with lock(layout.lock):
        remove_leftovers(layout)
        state = stock.state
        for release in stock.links.keys() - set(kernels.bootable):
            unlink_kernel(layout, release)
        for release in state.kernels.keys() - set(kernels.bootable):
            state = state.without(release)
        if state != stock.state:
            store_state(layout, state)
        if layout.previous.is_symlink() and layout.previous.readlink().name in found:
            layout.previous.unlink()
        return [_removed(layout, one, progress) for one in removed]


def _removed(layout: Layout, one: Removed, progress: Progress) -> Removed:
    progress(Note(f"remove {layout.entry(one.digest)}: {one.reason}"))
    size = remove(layout, one.digest)
    return Removed(one.driver, one.digest, one.kernel, one.reason, size)


def _stock(layout: Layout) -> Stock:
    there = sorted(
        entries(layout), key=lambda digest: layout.entry(digest).stat().st_ctime_ns, reverse=True
    )
    contents = {digest: read_contents(layout.entry(digest)) for digest in there}
    return Stock(
        entries={digest: known.kernel if known else None for digest, known in contents.items()},
        links=linked_kernels(layout),
        current=layout.current.readlink().name if layout.current.is_symlink() else None,
        state=load_state(layout),
    )


def _reason(kernel: str | None, kernels: set[str]) -> str:
    if kernel is None:
        return "its manifest can't be read"
    if kernel not in kernels:
        return f"the kernel {kernel} is gone"
    return f"the kernel {kernel} has newer ones"
