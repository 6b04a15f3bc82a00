"""Which artifact a kernel goes back to, and the rejection of the one that it had."""

from __future__ import annotations

from provision.config import Config
from provision.errors import NotFoundError
from provision.kmod.verify import files_fingerprint, first_damage, stored_manifest
from provision.store.entries import distrust, entries, link_kernel, linked_kernels
from provision.store.layout import Layout
from provision.store.state import Failure, load_state, refuse_newer, store_state


def begun(layout: Layout, release: str) -> tuple[str, str] | None:
    """Return the artifacts of a rollback that is not complete, as ``choose`` does; None: none is.

    The kernel's link points to the artifact that the rollback chose, and ``current`` to the one
    that it rejected.
    """
    refuse_newer(layout)
    used, chosen = layout.linked(layout.current), linked_kernels(layout).get(release)
    if used is None or chosen is None or used.name == chosen:
        return None
    is_rejected = used.name in load_state(layout).of(release).rejected
    return (used.name, chosen) if is_rejected and layout.entry(chosen).is_dir() else None


def choose(
    layout: Layout, release: str, config: Config, *, undoes: bool = False
) -> tuple[str, str]:
    """Return the artifact that a kernel uses and the one to go back to, by short digest.

    A rollback goes to the previous artifact of the kernel if it is whole, or else to the newest
    other one for this kernel that it did not go back from before. It goes to none that the host
    would not let in today: what one command tried, or a key that is gone has signed.

    Args:
        undoes: Whether what the last rollback left is a choice, too.

    Raises:
        NotFoundError: The kernel has no artifact, or none to go back to.
        NewerStateError: A newer provision wrote the driver's state.
    """
    refuse_newer(layout)
    now = linked_kernels(layout).get(release)
    if now is None:
        raise NotFoundError(
            f"{layout.driver} has no artifact for the kernel {release}.",
            resolution="Make one: provision apply",
        )
    known = load_state(layout).of(release)
    avoided = {now, *known.avoided} - ({known.previous} if undoes else set())
    others = sorted(
        (digest for digest in entries(layout) if digest not in avoided),
        key=lambda digest: (digest == known.previous, layout.entry(digest).stat().st_ctime_ns),
        reverse=True,
    )
    refused = []
    for digest in others:
        if _is_whole_for(layout, digest, release):
            why = distrust(config, layout.root, layout.driver, layout.entry(digest))
            if why is None:
                return now, digest
            refused.append(f"{digest} is not trusted now: {why}")
    raise NotFoundError(
        f"There is no other artifact of {layout.driver} for the kernel {release}.",
        details="\n".join(refused) or None,
        resolution="Set another version in provision.toml ([drivers.…] version), then run"
        " 'provision apply'. [policy] keep sets how many older artifacts stay.",
    )


def _is_whole_for(layout: Layout, digest: str, release: str) -> bool:
    """Return whether the store has an artifact for a kernel, undamaged."""
    entry = layout.entry(digest)
    manifest = stored_manifest(entry)
    if manifest is None or manifest.pin.kernel.release != release:
        return False
    return first_damage(entry, modules_only=False) is None


def reject(
    layout: Layout, release: str, digest: str, *, inputs: str, failure: Failure | None = None
) -> None:
    """Switch a kernel to another artifact, and reject the present one until its inputs change.

    One that failed for a reason that may pass is only avoided until a later run makes it anew. A
    rollback can be undone until what it goes to has been loaded.

    The caller has held the driver's lock since it chose the artifact.

    Args:
        inputs: Fingerprint of the inputs that give the rejected artifact.
        failure: The failure of the rejected artifact, if there was one.
    """
    state = load_state(layout)
    known = state.of(release)
    now = linked_kernels(layout).get(release)
    is_final = failure is None or failure.final
    candidates = [*known.rejected, now] if is_final else known.rejected
    undoes = failure is not None and digest in known.rejected
    # What there was before a rollback is what the present inputs give.
    is_settled = is_final or undoes
    manifest = stored_manifest(layout.entry(digest))
    version = manifest.pin.driver.version if manifest else None
    fingerprint = known.fingerprint
    if manifest is not None and now != digest:
        # Its files were compared when it was chosen, so no later run has to.
        fingerprint = files_fingerprint(layout.entry(digest), manifest)
    changed = state.changed(
        release,
        inputs=inputs if is_settled else None,
        version=version if is_settled else known.version,
        previous=now if failure is None else None,
        fingerprint=fingerprint,
        rejected=tuple(d for d in dict.fromkeys(candidates) if d and d != digest),
        refused=None if is_settled else now,
        failure=None if undoes else failure,
        load_failure=None,
    )
    # The rejection is written first: if the run is killed here, the user runs it again.
    store_state(layout, changed)
    link_kernel(layout, release, digest)
