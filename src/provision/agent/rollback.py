"""Goes back to what the running kernel used before: modules and user space together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from provision.agent.conclusion import Result, always_told
from provision.agent.inputs import read_inputs
from provision.agent.model import Desired, DesiredDriver
from provision.agent.plan import Mode
from provision.agent.previous import choose, reject
from provision.agent.reconcile import Run, apply
from provision.errors import InUseError, NotFoundError
from provision.host.kernel import kernel_release
from provision.progress import Note, Progress, silent
from provision.store.kernel_links import linked_kernels
from provision.store.layout import Layout
from provision.store.locks import changing, switching


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
    A build that is under way goes on: what it makes is not taken.

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
            now, digest = choose(layout, release)
            if now != meant:
                raise _switched(driver, str(meant), now)
            inputs = read_inputs(root, desired).of(wanted, release)
            progress(Note(f"{driver} goes back from {now} to {digest}"))
            reject(layout, release, digest, inputs=inputs)
        only = replace(desired, drivers=(wanted,), is_configured=False)
        mode = Mode(may_prepare=False)
        with always_told(root, progress):
            return apply(Run(root, only, mode, catalogues, progress, whole=desired))


def would_roll_back(root: Path, driver: str) -> tuple[str, str]:
    """Return from which artifact to which one a rollback would go.

    Raises:
        NotFoundError: There is nothing to go back to.
    """
    return choose(Layout(root, driver), _running(root))


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
