"""Kernels that are yet to come, and that the drivers were made for (``prepare``).

Until such a kernel is there, nothing on the host speaks of it; so it is written down, for garbage
collection to know.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from provision.host.kernel import kernel_order, kernel_release
from provision.host.kernels import Kernels
from provision.store.kernel_links import linked_kernels
from provision.store.layout import Layout
from provision.store.locks import changing
from provision.store.state import DriverState, NewerStateError, load_state, update_state


def announce(layout: Layout, coming: Iterable[str], root: Path) -> None:
    """Note that kernels are to come which have an artifact of a driver already.

    Of a driver whose state a newer provision wrote nothing is noted; nor is any of it removed.

    Raises:
        OSError: The store can't be written.
    """
    releases = [release for release in coming if release in linked_kernels(layout)]
    if not releases:
        return
    with changing(layout):
        links = linked_kernels(layout)
        running = kernel_release(root) or ""

        def marked(state: DriverState) -> DriverState:
            for release in releases:
                if release in links:
                    known = replace(state.of(release), announced=running)
                    state = state.updated(release, known)
            return state

        with suppress(NewerStateError):
            update_state(layout, marked)


def awaited(state: DriverState, kernels: Kernels) -> frozenset[str]:
    """Return the kernels that were announced and may still come. Pure.

    One that is there needs no announcement any more: it counts as long as it is there. One that
    never came is given up when the host has moved past it: when another kernel runs than did at
    the announcement, and a newer one than the announced.
    """
    running = kernels.running or ""
    return frozenset(
        release
        for release, known in state.kernels.items()
        if known.announced is not None
        and release not in kernels.bootable
        and (known.announced == running or kernel_order(running) < kernel_order(release))
    )


def settled(layout: Layout, kernels: Kernels) -> DriverState:
    """Return what is remembered, without announcements that have come true or are given up."""
    state = load_state(layout)
    still = awaited(state, kernels)
    for release, known in state.kernels.items():
        if known.announced is not None and release not in still:
            state = state.updated(release, replace(known, announced=None))
    return state
