"""Removes artifacts that no kernel needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from provision.agent.coming_kernels import awaited, is_calm, settled
from provision.agent.contents import read_contents
from provision.agent.model import Desired
from provision.errors import NotFoundError
from provision.files import glob_in_root
from provision.host.kernels import Kernels, find_kernels
from provision.progress import Note, Progress, silent
from provision.store.entries import entries, linked_kernels, remove, remove_leftovers, unlink_kernel
from provision.store.layout import STORE, Layout
from provision.store.locks import changing, switching
from provision.store.state import DriverState, NewerStateError, load_state, store_state


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
        kernel: The kernel that it is for; None: no one knows.
        reason: Why no one needs it.
        size: Bytes that this freed; None: it was not done.
    """

    driver: str
    digest: str
    kernel: str | None
    reason: str
    size: int | None = None


def unneeded(
    stock: Stock, bootable: Iterable[str], *, keep: int, is_sure: bool = True
) -> dict[str, str]:
    """Return which artifacts can go, with the reason. Pure.

    Whatever a kernel that may be booted uses stays, and for each of them some older artifacts to
    go back to.

    Args:
        stock: What there is.
        bootable: The kernels that may be booted.
        keep: How many more to keep of each kernel.
        is_sure: Whether these are all; otherwise those of other kernels stay too.
    """
    kernels = set(bootable)
    others = {kernel for kernel in stock.entries.values() if kernel is not None} - kernels
    needed = {
        digest for release, digest in stock.links.items() if release in kernels or not is_sure
    }
    needed |= {stock.current} if stock.current else set()
    # Of a driver that is out of use nothing is kept to go back to.
    if stock.links or stock.current:
        for release in kernels if is_sure else kernels | others:
            needed |= _spare(stock, release, needed, keep)
    return {
        digest: _reason(kernel, kernels)
        for digest, kernel in stock.entries.items()
        if digest not in needed
    }


def _spare(stock: Stock, release: str, needed: Set[str], keep: int) -> set[str]:
    """Return the artifacts to keep for a kernel besides the one that its link names.

    A kernel without a link may use what was installed without the agent: the newest stays.
    """
    before = stock.state.of(release).previous
    spare = [d for d, kernel in stock.entries.items() if kernel == release and d not in needed]
    # What the kernel used last comes first, then the newest.
    spare.sort(key=lambda digest: digest != before)
    is_used = release in stock.links or stock.entries.get(stock.current or "") == release
    return set(spare[: keep if is_used else max(keep, 1)])


def remove_unneeded(
    root: Path, desired: Desired, *, dry_run: bool = False, progress: Progress = silent
) -> list[Removed]:
    """Remove the artifacts that no kernel of a host needs.

    Args:
        root: Root of the host.
        desired: What it should have; its policy says how many artifacts to keep.
        dry_run: Only say what would be done.
        progress: Receives what is done.

    Raises:
        NotFoundError: The host has no kernel, so no one can tell what is needed.
        OSError: The store can't be written.
    """
    if dry_run:
        return _remove_all(root, desired.keep, dry_run=True, progress=progress)
    # Decided and done under the locks: what is installed or rolled back meanwhile counts.
    with switching(root, progress):
        return _remove_all(root, desired.keep, dry_run=False, progress=progress)


def _remove_all(root: Path, keep: int, *, dry_run: bool, progress: Progress) -> list[Removed]:
    kernels = find_kernels(root)
    if not kernels.installed and kernels.running is None:
        raise NotFoundError(
            f"There is no kernel under '{root}', so no one can tell which artifacts are needed.",
            resolution="Check whether /lib/modules is there.",
        )
    for doubt in kernels.doubts:
        progress(Note(f"There may be more kernels, so what they use stays: {doubt}"))
    if not is_calm(root):
        # What is half unpacked is about to be there.
        kernels = replace(kernels, others=(*kernels.others, *kernels.incomplete))
    removed: list[Removed] = []
    for layout in _stored(root):
        if dry_run:
            removed += _planned(layout, kernels, keep, progress)
            continue
        with changing(layout, progress):
            removed += _remove_of(layout, kernels, keep, progress)
    return removed


def kept_digests(root: Path) -> set[str]:
    """Return the short digests of all artifacts in a host's store."""
    return {digest for layout in _stored(root) for digest in entries(layout)}


def _stored(root: Path) -> list[Layout]:
    """Return the drivers that the store has anything of."""
    layouts = [Layout(root, path.name) for path in glob_in_root(root, f"{STORE}/*")]
    return [layout for layout in layouts if entries(layout) or linked_kernels(layout)]


def _planned(layout: Layout, kernels: Kernels, keep: int, progress: Progress) -> list[Removed]:
    """Return what can go of a driver."""
    stock = _stock(layout)
    if stock.state.is_newer:
        progress(Note(NewerStateError(layout.state, stock.state.schema).message))
        return []
    bootable = {*kernels.bootable, *awaited(stock.state, kernels)}
    found = unneeded(stock, bootable, keep=keep, is_sure=not kernels.doubts)
    return [
        Removed(layout.driver, digest, stock.entries[digest], reason)
        for digest, reason in found.items()
    ]


def _remove_of(layout: Layout, kernels: Kernels, keep: int, progress: Progress) -> list[Removed]:
    """Remove what can go of a driver; the caller holds its lock."""
    remove_leftovers(layout)
    found = _planned(layout, kernels, keep, progress)
    state = before = load_state(layout)
    if state.is_newer:
        return []
    if not kernels.doubts:
        state = settled(layout, kernels)
        bootable = {*kernels.bootable, *awaited(state, kernels)}
        for release in linked_kernels(layout).keys() - bootable:
            unlink_kernel(layout, release)
        for release in state.kernels.keys() - bootable:
            state = state.without(release)
    if state != before:
        store_state(layout, state)
    gone = {one.digest for one in found}
    if layout.previous.is_symlink() and layout.previous.readlink().name in gone:
        layout.previous.unlink()
    return [_removed(layout, one, progress) for one in found]


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
