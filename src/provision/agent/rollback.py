"""Goes back to the previous artifact of a driver, by the store alone."""

from __future__ import annotations

from pathlib import Path

from provision.agent.desired import read_inputs
from provision.agent.model import Desired, Mode, Run
from provision.agent.run import Result, always_published, apply
from provision.agent.status import NAME_A_DRIVER
from provision.agent.use import begun, choose, reject
from provision.errors import InUseError, NotFoundError, ProvisionError, choices
from provision.host.kernels import kernel_release
from provision.progress import Note, report
from provision.store.entries import linked_kernels
from provision.store.layout import Layout, changing, switching


def rollback(root: Path, desired: Desired, driver: str) -> Result:
    """Go back to the previous artifact of the running kernel.

    Modules in use stay loaded until the next boot, which loads the chosen artifact. If the kernel
    or its own check refuses that, the rollback is undone. A running build goes on, but its artifact
    is not used. If an earlier rollback was interrupted or waits for a
    boot, it is completed instead: going back further would skip an artifact that never ran.

    Raises:
        InUseError: Another command switched the driver while this one waited; nothing was done.
        ProvisionError: The rollback was undone.
    """
    layout, release = _target(root, desired, driver)
    meant = linked_kernels(layout).get(release)
    with switching(root):
        with changing(layout):
            now, digest = begun(layout, release) or choose(layout, release, desired.config)
            linked = linked_kernels(layout).get(release)
            if linked != meant:
                raise InUseError(
                    f"Another command has switched {driver} from {meant} to {linked} while this one"
                    " waited.",
                    resolution="Nothing was done. To go back further, run the command again.",
                )
            inputs = read_inputs(root, desired).of(driver, release)
            report(Note(f"{driver} goes back from {now} to {digest}"))
            reject(layout, release, digest, inputs=inputs)
        with always_published(root):
            result = apply(Run(root, desired, Mode(may_prepare=False, only=driver)))
        if linked_kernels(layout).get(release) != digest:
            raise _undone(driver, now, digest, result)
    return result


def _undone(driver: str, now: str, digest: str, result: Result) -> ProvisionError:
    error = next(one.error for one in result.outcomes if one.error is not None)
    return ProvisionError(
        f"{driver} can't go back to {digest}, and {now} is used as before: {error.message}",
        resolution=error.resolution,
        details=error.details,
    )


def would_roll_back(root: Path, desired: Desired, driver: str) -> tuple[str, str]:
    """Return the artifacts that a rollback would go from and to, by short digest."""
    layout, release = _target(root, desired, driver)
    return begun(layout, release) or choose(layout, release, desired.config)


def _target(root: Path, desired: Desired, driver: str) -> tuple[Layout, str]:
    if driver not in desired.drivers:
        raise NotFoundError(
            f"provision.toml names no driver '{driver}'.",
            resolution=choices(driver, desired.drivers) if desired.drivers else NAME_A_DRIVER,
        )
    release = kernel_release(root)
    if release is None:
        raise NotFoundError(
            f"There is no kernel under '{root}'.",
            resolution=f"See which kernels it has: ls {root / 'usr/lib/modules'}",
        )
    return Layout(root, driver), release
