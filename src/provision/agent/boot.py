"""Activates the artifacts of the running kernel at boot, from the store only.

The loaders have loaded the modules before, without Python (``provision.kmod.loader``). What one
could not load is tried again here, to say why, and to fall back to the previous artifact. A boot
needs no network and no engine, and builds nothing. A later run makes what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from provision.agent.desired import last_desired, load_desired
from provision.agent.model import Desired, KernelArtifact, Mode, Observed, Run
from provision.agent.observe import applied_drivers, observe
from provision.agent.rollback import choose
from provision.agent.run import Result, apply, clean
from provision.config import Config, DriverConfig
from provision.errors import ConfigError, NotFoundError
from provision.progress import Note, report
from provision.store.entries import link_kernel
from provision.store.layout import Layout, changing, switching
from provision.store.state import NewerStateError, load_state, store_state


def boot(root: Path, *, catalogues: Sequence[Path] = ()) -> Result:
    """Activate and load what the store has for the running kernel.

    If provision.toml has mistakes, its last valid content applies, or else all drivers in the store
    are loaded. The mistakes are reported at the end.

    Raises:
        ConfigError: provision.toml has mistakes.
    """
    mistakes: ConfigError | None = None
    try:
        desired = load_desired(root, catalogues=catalogues)
    except ConfigError as error:
        report(Note(f"{error.message}: its last valid content is used"))
        mistakes = error
        stored = dict.fromkeys(sorted(applied_drivers(root)), DriverConfig())
        known = last_desired(root, catalogues=catalogues)
        desired = known or Desired(Config(drivers=stored))
    with switching(root):
        for name in desired.drivers:
            clean(Layout(root, name))
        observed = observe(root, desired, compare_modules=True)
        _replace_damaged(root, observed, desired.config)
        result = apply(Run(root, desired, Mode(may_prepare=False), catalogues))
    if mistakes is not None:
        raise mistakes
    return result


def _replace_damaged(root: Path, observed: Observed, config: Config) -> None:
    """Record damaged artifacts, and fall back to others that are whole.

    A later run makes the damaged artifacts again.
    """
    running = observed.kernels.running
    for driver in observed.drivers.values():
        artifact = driver.artifacts.get(running or "")
        if running is None or artifact is None or artifact.damage is None:
            continue
        report(Note(f"The artifact of {driver.name} for {running} is damaged: {artifact.damage}"))
        layout = Layout(root, driver.name)
        try:
            with changing(layout):
                _replace(layout, running, artifact, config)
        except NewerStateError as error:
            report(Note(error.message))


def _replace(layout: Layout, running: str, artifact: KernelArtifact, config: Config) -> None:
    """Record that a kernel's artifact is damaged; fall back to another one if there is one."""
    state = load_state(layout).changed(running, damaged=artifact.digest)
    store_state(layout, state)
    with suppress(NotFoundError):
        _now, before = choose(layout, running, config)
        # Its inputs are not known, so a later run decides again. The state is written first and
        # keeps the previous artifact: if this boot is killed here, the next one repeats it.
        state = state.changed(running, inputs=None, fingerprint=None)
        store_state(layout, state)
        link_kernel(layout, running, before)
        store_state(layout, state.changed(running, previous=None))
        report(Note(f"Falling back to the artifact before: {before}"))
