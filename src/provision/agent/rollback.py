"""Goes back to the previous artifact of the running kernel: modules and user space together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from provision.agent.desired import read_inputs
from provision.agent.model import Desired, DesiredDriver, Mode, Run
from provision.agent.run import Result, always_published, apply
from provision.errors import InUseError, NotFoundError
from provision.host.kernels import kernel_release
from provision.kmod.verify import first_damage, stored_manifest
from provision.progress import Note, Progress, silent
from provision.store.entries import entries, link_kernel, linked_kernels
from provision.store.layout import Layout
from provision.store.locks import changing, switching
from provision.store.state import Failure, load_state, refuse_newer, store_state


def choose(layout: Layout, release: str) -> tuple[str, str]:
    """Return the artifact that a kernel uses and the one to go back to, by short digest.

    A rollback goes to the previous artifact of the kernel if it is whole, or else to the newest
    other one for this kernel that was not rolled back from.

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
    others = sorted(
        (digest for digest in entries(layout) if digest != now and digest not in known.rejected),
        key=lambda digest: (digest == known.previous, layout.entry(digest).stat().st_ctime_ns),
        reverse=True,
    )
    for digest in others:
        manifest = stored_manifest(layout.entry(digest))
        if manifest is None or manifest.pin.kernel.release != release:
            continue
        if first_damage(layout.entry(digest), modules_only=False) is None:
            return now, digest
    raise NotFoundError(
        f"There is no other artifact of {layout.driver} for the kernel {release}.",
        resolution="Set another version in provision.toml ([drivers.…] version), then run"
        " 'provision apply'. [policy] keep sets how many older artifacts stay.",
    )


def reject(
    layout: Layout, release: str, digest: str, *, inputs: str, failure: Failure | None = None
) -> None:
    """Switch a kernel to another artifact, and reject the present one until its inputs change.

    One that failed for a reason that may pass is not rejected; a later run makes it anew.

    The caller has held the driver's lock since it chose the artifact.

    Args:
        inputs: Fingerprint of the inputs that give the rejected artifact.
        failure: The failure of the rejected artifact, if there was one.

    Raises:
        NewerStateError: A newer provision wrote the driver's state.
    """
    state = load_state(layout)
    known = state.of(release)
    now = linked_kernels(layout).get(release)
    is_final = failure is None or failure.final
    candidates = [*known.rejected, now] if is_final else known.rejected
    rejected = tuple(d for d in dict.fromkeys(candidates) if d and d != digest)
    manifest = stored_manifest(layout.entry(digest))
    version = manifest.pin.driver.version if manifest else None
    changes = {
        "inputs": inputs if is_final else None,
        "version": version if is_final else known.version,
        "previous": None,
        "fingerprint": None,
        "rejected": rejected,
        "failure": failure,
        "load_failure": None,
    }
    changed = known.model_copy(update=changes)
    # The rejection is written first: if the run is killed here, the user runs it again.
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
    """Go back to the previous artifact of the running kernel.

    Modules in use stay loaded until the next boot, which loads the chosen artifact. A running build
    goes on, but its artifact is not used. If an earlier rollback was interrupted or waits for a
    boot, it is completed instead: going back further would skip an artifact that never ran.

    Raises:
        NotFoundError: There is no artifact to go back to.
        InUseError: Another command switched the driver while this one waited; nothing was done.
        NewerStateError: A newer provision wrote the driver's state.
    """
    layout = Layout(root, driver)
    release = _running(root)
    meant = linked_kernels(layout).get(release)
    with switching(root, progress):
        chosen = _desired_driver(desired, driver)
        with changing(layout, progress):
            now, digest = _begun(layout, release) or choose(layout, release)
            linked = linked_kernels(layout).get(release)
            if linked != meant:
                raise _switched(driver, str(meant), str(linked))
            inputs = read_inputs(root, desired).of(chosen, release)
            progress(Note(f"{driver} goes back from {now} to {digest}"))
            reject(layout, release, digest, inputs=inputs)
        mode = Mode(may_prepare=False)
        with always_published(root, progress):
            return apply(Run(root, desired, mode, catalogues, progress, only=driver))


def would_roll_back(root: Path, desired: Desired, driver: str) -> tuple[str, str]:
    """Return the artifacts that a rollback would go from and to, by short digest."""
    _desired_driver(desired, driver)
    layout, release = Layout(root, driver), _running(root)
    return _begun(layout, release) or choose(layout, release)


def _begun(layout: Layout, release: str) -> tuple[str, str] | None:
    """Return the artifacts of a rollback that is not complete, as ``choose`` does; None: none is.

    The kernel's link points to the artifact that the rollback chose, and ``current`` to the one
    that it rejected.

    Raises:
        NewerStateError: A newer provision wrote the driver's state.
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
        raise NotFoundError(
            f"There is no kernel under '{root}'.",
            resolution=f"See which kernels it has: ls {root / 'usr/lib/modules'}",
        )
    return release


def _switched(driver: str, meant: str, now: str) -> InUseError:
    return InUseError(
        f"Another command has switched {driver} from {meant} to {now} while this one waited.",
        resolution="Nothing was done. To go back further, run the command again.",
    )


def _desired_driver(desired: Desired, driver: str) -> DesiredDriver:
    found = next((one for one in desired.drivers if one.name == driver), None)
    if found is None:
        raise NotFoundError(
            f"provision.toml names no driver '{driver}'.",
            resolution=f"It names {', '.join(one.name for one in desired.drivers) or 'no driver'}.",
        )
    return found
