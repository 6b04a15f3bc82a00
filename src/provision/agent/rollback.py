"""Goes back to what the running kernel used before: modules and user space together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from provision.agent.conclusion import Result, always_published
from provision.agent.contents import damages, read_contents
from provision.agent.desired import read_inputs
from provision.agent.model import Desired, DesiredDriver
from provision.agent.outcome import Run
from provision.agent.plan import Mode
from provision.agent.reconcile import apply
from provision.errors import InUseError, NotFoundError
from provision.host.kernels import kernel_release
from provision.progress import Note, Progress, silent
from provision.store.entries import entries, link_kernel, linked_kernels
from provision.store.layout import Layout
from provision.store.locks import changing, switching
from provision.store.state import Failure, load_state, refuse_newer, store_state


def choose(layout: Layout, release: str) -> tuple[str, str]:
    """Return the artifact that a kernel uses and the one to go back to, by short digest.

    The one that the kernel used before, if it is there and whole; else the newest other one for
    this kernel that no one rolled back from.

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
    """Switch a kernel to another artifact, and refuse the present one until the inputs change.

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
        fingerprint=None,
        rejected=rejected,
        failure=failure,
        load_failure=None,
    )
    # The rejection first: a run that is killed in between is asked for again.
    store_state(layout, state.updated(release, changed))
    link_kernel(layout, release, digest)


def rollback(
    root: Path,
    desired: Desired,
    driver: str,
    *,
    catalogues: Sequence[Path] = (),
    progress: Progress = silent,
) -> Result:
    """Go back to the artifact before, for the running kernel.

    Modules that are in use stay until the next boot, which takes the artifact that was chosen.
    A build that is under way goes on: what it makes is not taken. A rollback whose artifact is not
    in use yet, because it was interrupted or waits for the boot, is completed: no one has seen the
    artifact that it chose, so that going back further would skip it.

    Raises:
        NotFoundError: There is nothing to go back to.
        InUseError: Another command switched the driver while this one waited for it; nothing was
            done.
        NewerStateError: A newer provision wrote what is remembered of the driver.
        OSError: The store can't be written.
    """
    layout = Layout(root, driver)
    release = _running(root)
    meant = linked_kernels(layout).get(release)
    with switching(root, progress):
        wanted = _wanted(desired, driver)
        with changing(layout, progress):
            now, digest = _begun(layout, release) or choose(layout, release)
            linked = linked_kernels(layout).get(release)
            if linked != meant:
                raise _switched(driver, str(meant), str(linked))
            inputs = read_inputs(root, desired).of(wanted, release)
            progress(Note(f"{driver} goes back from {now} to {digest}"))
            reject(layout, release, digest, inputs=inputs)
        only = replace(desired, drivers=(wanted,), is_configured=False)
        mode = Mode(may_prepare=False)
        with always_published(root, progress):
            return apply(Run(root, only, mode, catalogues, progress, whole=desired))


def would_roll_back(root: Path, driver: str) -> tuple[str, str]:
    """Return from which artifact to which one a rollback would go.

    Raises:
        NotFoundError: There is nothing to go back to.
    """
    layout, release = Layout(root, driver), _running(root)
    return _begun(layout, release) or choose(layout, release)


def _begun(layout: Layout, release: str) -> tuple[str, str] | None:
    """Return what `choose` does, for a rollback whose artifact is not in use yet.

    The kernel's link leads to the artifact that it chose, and ``current`` to the one that it
    rejected.

    Raises:
        NewerStateError: A newer provision wrote what is remembered of the driver.
    """
    refuse_newer(layout)
    used, chosen = layout.linked(layout.current), linked_kernels(layout).get(release)
    if used is None or chosen is None or used.name == chosen:
        return None
    is_whole = layout.entry(chosen).is_dir()
    is_begun = is_whole and used.name in load_state(layout).of(release).rejected
    return (used.name, chosen) if is_begun else None


def _running(root: Path) -> str:
    release = kernel_release(root)
    if release is None:
        raise NotFoundError(f"There is no kernel under '{root}'.")
    return release


def _switched(driver: str, meant: str, now: str) -> InUseError:
    return InUseError(
        f"Another command has switched {driver} from {meant} to {now} while this one waited.",
        resolution="Nothing was done. To go back further, run the command again.",
    )


def _wanted(desired: Desired, driver: str) -> DesiredDriver:
    found = next((wanted for wanted in desired.drivers if wanted.name == driver), None)
    if found is None:
        raise NotFoundError(
            f"provision.toml names no driver '{driver}'.",
            resolution="It names "
            f"{', '.join(wanted.name for wanted in desired.drivers) or 'none at all'}.",
        )
    return found
