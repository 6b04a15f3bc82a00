"""The artifact that a kernel used before the one that it uses now."""

from __future__ import annotations

from dataclasses import replace

from provision.agent.contents import damages, read_contents
from provision.errors import NotFoundError
from provision.store.kernel_links import entries, link_kernel, linked_kernels
from provision.store.layout import Layout
from provision.store.state import Failure, load_state, refuse_newer, store_state


def choose(layout: Layout, release: str) -> tuple[str, str]:
    """Return the artifact that a kernel uses and the one to go back to, by short digest.

    The one that the kernel used before, if it is there and whole; else the newest other one for
    this kernel that nobody rolled back from.

    Raises:
        NotFoundError: The kernel has no artifact, or none to go back to.
        NewerStateError: A newer provision wrote what is remembered of the driver.
    """
    refuse_newer(layout)
    now = linked_kernels(layout).get(release)
    if now is None:
        raise NotFoundError(
            f"{layout.driver} has no artifact for the kernel {release}.",
            resolution="Make one: provision apply.",
        )
    known = load_state(layout).of(release)
    others = sorted(
        (digest for digest in entries(layout) if digest != now and digest not in known.rejected),
        key=lambda digest: (digest == known.previous, layout.entry(digest).stat().st_ctime_ns),
        reverse=True,
    )
    for digest in others:
        contents = read_contents(layout.entry(digest))
        if contents is None or contents.kernel != release:
            continue
        if not any(damages(layout.entry(digest), contents, all_checksums=True)):
            return now, digest
    raise NotFoundError(
        f"There is no other artifact of {layout.driver} for the kernel {release}.",
        resolution="Ask for another version in provision.toml ([drivers.…] version), then run"
        " 'provision apply'; [policy] keep says how many old ones stay.",
    )


def reject(
    layout: Layout, release: str, digest: str, *, inputs: str, failure: Failure | None = None
) -> None:
    """Let a kernel use another artifact, and its present one no more until the inputs change.

    The caller holds the driver's lock since it chose.

    Args:
        layout: The driver's places.
        release: The kernel.
        digest: The artifact to use.
        inputs: Fingerprint of what would give the rejected one again.
        failure: Why it is rejected, if it did not work.

    Raises:
        NewerStateError: A newer provision wrote what is remembered of the driver.
        OSError: The store can't be written.
    """
    state = load_state(layout)
    known = state.of(release)
    now = linked_kernels(layout).get(release)
    rejected = tuple(d for d in dict.fromkeys([*known.rejected, now]) if d and d != digest)
    contents = read_contents(layout.entry(digest))
    changed = replace(
        known,
        inputs=inputs,
        version=contents.version if contents else None,
        previous=None,
        stamp=None,
        rejected=rejected,
        failure=failure,
        load_failure=None,
    )
    # The rejection first: a run that is killed in between is asked for again.
    store_state(layout, state.updated(release, changed))
    link_kernel(layout, release, digest)
