"""Goes back to what the running kernel used before: modules and user space together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from provision.agent.inputs import read_inputs
from provision.agent.model import Desired, DesiredDriver
from provision.agent.plan import Mode
from provision.agent.previous import choose, reject
from provision.agent.reconcile import Result, Run, apply_held, held
from provision.errors import NotFoundError
from provision.host.kernels import find_kernels
from provision.install.layout import Layout
from provision.progress import Note, Progress, silent


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

    Raises:
        NotFoundError: There is nothing to go back to.
        OSError: The store can't be written.
    """
    layout = Layout(root, driver)
    with held(root, progress):
        release = _running(root)
        now, digest = choose(layout, release)
        wanted = _wanted(desired, driver)
        inputs = read_inputs(root, desired).of(wanted, release)
        progress(Note(f"{driver} goes back from {now} to {digest}"))
        reject(layout, release, digest, inputs=inputs)
        alone = replace(desired, drivers=(wanted,), is_configured=False)
        run = Run(root, alone, Mode(may_prepare=False), catalogues, progress=progress)
        return apply_held(run, whole=desired)


def would_roll_back(root: Path, driver: str) -> tuple[str, str]:
    """Return from which artifact to which one a rollback would go.

    Raises:
        NotFoundError: There is nothing to go back to.
    """
    return choose(Layout(root, driver), _running(root))


def _running(root: Path) -> str:
    release = find_kernels(root).running
    if release is None:
        raise NotFoundError(f"There is no kernel under '{root}'.")
    return release


def _wanted(desired: Desired, driver: str) -> DesiredDriver:
    found = next((wanted for wanted in desired.drivers if wanted.name == driver), None)
    if found is None:
        raise NotFoundError(
            f"provision.toml names no driver '{driver}'.",
            resolution="It names "
            f"{', '.join(wanted.name for wanted in desired.drivers) or 'none at all'}.",
        )
    return found
