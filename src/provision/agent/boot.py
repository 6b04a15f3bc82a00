"""What happens at a boot: the running kernel's artifacts are put to use, from the store alone.

No network, no engine, nothing is made. What is missing is left to a later run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from provision.agent.desired import last_desired, load_desired
from provision.agent.model import Desired, DesiredDriver, Observed
from provision.agent.observe import observe
from provision.agent.plan import Mode
from provision.agent.reconcile import Result, Run, apply, held
from provision.errors import ConfigError
from provision.install.kernels import link_kernel
from provision.install.layout import STORE, Layout
from provision.install.state import load_state, store_state
from provision.progress import Note, Progress, silent


def boot(
    root: Path = Path("/"), *, catalogues: Sequence[Path] = (), progress: Progress = silent
) -> Result:
    """Put to use what the store has for the running kernel.

    A provision.toml with mistakes costs no driver: what it said last is taken, or else everything
    that the store has; its mistakes are reported in the end.

    Raises:
        ConfigError: provision.toml has mistakes.
        OSError: The store can't be written.
    """
    mistakes: ConfigError | None = None
    try:
        desired = load_desired(root, catalogues=catalogues)
    except ConfigError as error:
        progress(Note(f"{error.message}: taking what it said before"))
        mistakes = error
        desired = last_desired(root) or _stored(root)
    with held(root, progress):
        _replace_damaged(root, desired, observe(root, desired, look="modules"), progress)
    result = apply(Run(root, desired, Mode(may_prepare=False), catalogues, progress=progress))
    if mistakes is not None:
        raise mistakes
    return result


def _stored(root: Path) -> Desired:
    """Return as desired what the store has."""
    names = sorted({link.parent.parent.name for link in (root / STORE).glob("*/kernels/*")})
    return Desired(tuple(DesiredDriver(name) for name in names))


def _replace_damaged(root: Path, desired: Desired, observed: Observed, progress: Progress) -> None:
    """Note which artifacts are damaged, and take the one before where there is one that is whole.

    A later run makes the damaged one anew.
    """
    running = observed.kernels.running
    if running is None:
        return
    for driver in observed.drivers.values():
        slot = driver.slots.get(running)
        if slot is None or slot.digest is None or slot.is_whole:
            continue
        progress(Note(f"The artifact of {driver.name} for {running} is damaged: {slot.damage}"))
        layout = Layout(root, driver.name)
        state = load_state(layout)
        known = replace(state.of(running), damaged=slot.digest)
        if slot.previous is not None and slot.previous != slot.digest:
            link_kernel(layout, running, slot.previous)
            # Made from what nobody knows: a later run decides anew.
            known = replace(known, inputs=None, previous=None, stamp=None)
            before = observe(root, desired, look="modules").drivers[driver.name].slots[running]
            if before.is_whole:
                progress(Note(f"Taking the one before: {slot.previous}"))
            else:
                link_kernel(layout, running, slot.digest)
                known = replace(state.of(running), damaged=slot.digest)
        store_state(layout, state.updated(running, known))
