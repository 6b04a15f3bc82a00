"""One run of the agent: observe → plan → apply, then publish the host's status.

The host's lock is held from an observation until the actions that were planned from it are done.
Builds and pulls run without that lock; afterwards, the host is observed and planned for again
(docs/decisions/08-agent.md).

At a boot, the loaders have loaded the modules before, without Python (``provision.kmod.loader``).
What one could not load is tried again here, to say why, and to fall back to the previous artifact.
A boot needs no network and no engine, and builds nothing. A later run makes what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from provision.agent.actions import Actions, Preparations
from provision.agent.desired import last_desired, load_desired
from provision.agent.hold import settle
from provision.agent.model import (
    Action,
    Desired,
    KernelArtifact,
    Key,
    Mode,
    Observed,
    Outcome,
    Plan,
    Run,
    plan,
)
from provision.agent.observe import applied_drivers, observe
from provision.agent.status import (
    Status,
    failed_status,
    publish,
    status_of,
)
from provision.agent.use import choose
from provision.config import Config, DriverConfig
from provision.errors import (
    ConfigError,
    NotFoundError,
    ProvisionError,
    UnexpectedError,
    as_error,
)
from provision.host.kernels import kernel_release
from provision.kmod.loader import is_written, try_write_loader
from provision.progress import Note, report
from provision.store.entries import link_kernel, linked_kernels, remove_leftovers
from provision.store.layout import Layout, building, changing, switching
from provision.store.state import (
    DriverState,
    NewerStateError,
    load_state,
    store_state,
    update_state,
)

# The error must reach its reader soon, even if the status waits for a lock.
_PUBLISH_SECONDS = 5.0


class Result(NamedTuple):
    """The result of a run: its outcomes, and the host's status after it."""

    outcomes: tuple[Outcome, ...]
    status: Status
    # Files of the status that could not be written.
    problems: tuple[str, ...] = ()


def plan_host(
    root: Path, desired: Desired, mode: Mode | None = None
) -> tuple[Observed, Plan, Status]:
    """Observe a host and plan for it, without changing it."""
    observed = observe(root, desired, extra_kernels=mode.extra_kernels if mode else ())
    planned = plan(desired, observed, mode)
    return observed, planned, status_of(desired, observed, planned, time=int(time.time()))


def no_preparations(_run: Run, _held: ExitStack) -> Preparations:
    """Stand for preparations where a run's mode allows none."""
    raise AssertionError("This run makes no artifacts.")


def apply(
    run: Run,
    preparations: Callable[[Run, ExitStack], Preparations] = no_preparations,
    *,
    observed: Observed | None = None,
) -> Result:
    """Bring a host to its desired state.

    Every failure is recorded and part of the result; other drivers' actions go on. A caller that
    holds the host's lock must not allow builds and pulls (``Mode.may_prepare``).

    Args:
        preparations: Returns those of a run, if its mode allows any.
        observed: What the caller, who holds the host's lock, has just observed.
    """
    with switching(run.root):
        for name in run.desired.drivers:
            layout = Layout(run.root, name)
            clean(layout)
            if run.mode.extra_kernels:
                _announce(layout, run)
    with ExitStack() as held:
        work = _Apply(run, held, preparations, observed)
        is_builder = False
        while True:
            with switching(run.root):
                served = work.serve()
                if isinstance(served, Result):
                    return served
            if not is_builder:
                is_builder = True
                if held.enter_context(building(run.root)):
                    # Another run has built meanwhile: plan again.
                    continue
            work.do(*served)


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
        found = [one for driver in observed.drivers.values() for one in driver.artifacts.values()]
        is_whole = all(artifact.damage is None for artifact in found)
        run = Run(root, desired, Mode(may_prepare=False), catalogues)
        # Later runs, which compare no modules, have to see what this one publishes.
        result = apply(run, observed=observed if is_whole else None)
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


class _Apply:
    def __init__(
        self,
        run: Run,
        held: ExitStack,
        preparations: Callable[[Run, ExitStack], Preparations],
        observed: Observed | None,
    ) -> None:
        self.run = run
        self.observed = observed
        self.actions = Actions(run, cache(lambda: preparations(run, held)))
        self.outcomes: list[Outcome] = []
        # Not repeated, however often the host is planned for.
        self.tried: set[Key] = set()

    def serve(self) -> Result | tuple[Action, Observed]:
        """Carry out the actions that need no new artifact; the caller holds the host's lock.

        Returns:
            The result of the run; or the first action that makes an artifact, with the observation
            that it was planned from.
        """
        run = self.run
        while True:
            observed = self.observed or observe(
                run.root, run.desired, extra_kernels=run.mode.extra_kernels
            )
            self.observed = None
            if run.mode.may_prepare:
                # Before a build, during which the host may be rebooted, and after it.
                observed = observed._replace(hold=settle(run.root, run.desired, observed))
            tried = frozenset(self.tried)
            planned = plan(run.desired, observed, run.mode, tried=tried)
            if not planned.actions:
                return self._conclude(observed)
            ready = list(
                takewhile(lambda action: action.kind not in {"prepare", "try"}, planned.actions)
            )
            if not ready:
                # That may take minutes, in which the status shows what is planned.
                status = status_of(run.desired, observed, planned, time=int(time.time()))
                publish(run.root, status, run.desired.config)
                return planned.actions[0], observed
            for action in ready:
                outcome = self.do(action, observed)
                if outcome.error is not None:
                    # What follows was planned for a success.
                    self._replan_without(action, observed, outcome.error)
                    break

    def do(self, action: Action, observed: Observed) -> Outcome:
        self.tried.add(action.key)
        outcome = self.actions.do(action, observed)
        report(Note(outcome.result))
        self.outcomes.append(outcome)
        return outcome

    def _replan_without(self, action: Action, observed: Observed, error: ProvisionError) -> None:
        """Have the previous artifact activated and loaded, if this one has cost its driver.

        That is so at a boot, after other modules were unloaded for these, and after a check.
        """
        has_unloaded = ("unload", action.driver, action.kernel) in self.tried
        has_lost = action.kind == "load" and (has_unloaded or not self.run.mode.may_prepare)
        if not (has_lost or action.kind == "check"):
            return
        if self.actions.fall_back(action, observed, error):
            again = ("unload", "activate", "load", "check")
            self.tried -= {(kind, action.driver, action.kernel) for kind in again}

    def _conclude(self, observed: Observed) -> Result:
        run = self.run
        if run.mode.may_prepare:
            _write_loaders(run)
        # What succeeded in the end is no failure.
        last = {outcome.action.key: outcome for outcome in self.outcomes}.values()
        observed = _with_failures(observed, last)
        _remember_found(run.root, observed)
        # What an ordinary run would do next, whatever this one was asked for.
        planned, error = plan(run.desired, observed), _trouble(run.desired, last)
        status = status_of(run.desired, observed, planned, time=int(time.time()), error=error)
        problems = publish(run.root, status, run.desired.config)
        return Result(tuple(self.outcomes), status, problems)


def clean(layout: Layout) -> None:
    """Remove leftovers of killed runs, and put back entries that they were replacing."""
    names: set[str] = set()
    for folder in (layout.folder, layout.kernels):
        with suppress(OSError):
            names.update(path.name for path in folder.iterdir())
    if any(name.startswith(".") for name in names - {layout.lock.name}):
        with changing(layout):
            for path in remove_leftovers(layout):
                report(Note(f"Removed a leftover of an interrupted run: {path}"))


def _announce(layout: Layout, run: Run) -> None:
    """Record the kernels to come that have an artifact, so that garbage collection keeps it.

    Nothing on the host shows them yet. What is made for others is announced when it is linked.
    """
    links = linked_kernels(layout)
    releases = [release for release in run.mode.extra_kernels if release in links]
    running = kernel_release(run.root) or ""

    def announced(state: DriverState) -> DriverState:
        for release in releases:
            state = state.changed(release, announced=running)
        return state

    # A newer provision, whose state this is, removes nothing that it does not know.
    with suppress(NewerStateError):
        update_state(layout, announced)


def _write_loaders(run: Run) -> None:
    """Write the loaders that are missing: for other options, or by an older provision."""
    for name, setting in run.desired.drivers.items():
        layout = Layout(run.root, name)
        for digest in sorted(set(linked_kernels(layout).values())):
            entry = layout.entry(digest)
            if entry.is_dir() and not is_written(entry, setting.options, root=run.root):
                with changing(layout):
                    try_write_loader(entry, setting.options, root=run.root)


def _trouble(desired: Desired, outcomes: Iterable[Outcome]) -> ProvisionError | None:
    """Return the first failure that is not part of any kernel's status.

    Such a failure concerns a driver that provision.toml no longer names, or is a defect of this
    program. A defect counts even if the installed artifact works.
    """
    for outcome in outcomes:
        error = outcome.error
        if error is None:
            continue
        if isinstance(error, UnexpectedError) or outcome.action.driver not in desired.drivers:
            message = f"{outcome.action}: {error.message}"
            return ProvisionError(message, resolution=error.resolution, details=error.details)
    return None


def _with_failures(observed: Observed, outcomes: Iterable[Outcome]) -> Observed:
    drivers = dict(observed.drivers)
    for outcome in outcomes:
        kind, name, release = outcome.action.key
        artifacts = drivers[name].artifacts if name in drivers else {}
        artifact = artifacts.get(release)
        if outcome.failure is None or artifact is None:
            continue
        known = artifact.known
        if known.failure or known.load_failure or (kind == "prepare" and artifact.is_current):
            continue
        field = "failure" if kind == "prepare" else "load_failure"
        known = known.model_copy(update={field: outcome.failure})
        artifacts = {**artifacts, release: artifact._replace(known=known)}
        drivers[name] = drivers[name]._replace(artifacts=artifacts)
    return observed._replace(drivers=drivers)


def _remember_found(root: Path, observed: Observed) -> None:
    """Record that artifacts were compared with their manifests, so that no run repeats it.

    And that a kernel has come for which they were made, and that a rollback is complete: what it
    went to works.
    """
    running = observed.kernels.running
    for driver in observed.drivers.values():
        layout = Layout(root, driver.name)
        found: dict[str, dict[str, str | None]] = {}
        for release, artifact in driver.artifacts.items():
            if artifact.fingerprint not in {None, artifact.known.fingerprint}:
                found[release] = {"fingerprint": artifact.fingerprint}
            if artifact.has_come:
                found[release] = {**found.get(release, {}), "inputs": artifact.inputs}
            serves = driver.serves and driver.current == artifact.digest
            if release == running and serves and artifact.known.previous in artifact.known.rejected:
                found[release] = {**found.get(release, {}), "previous": None}
        if not found:
            continue
        with suppress(OSError, ProvisionError), changing(layout):
            links = linked_kernels(layout)
            state = before = load_state(layout)
            for release, changes in found.items():
                if links.get(release) == driver.artifacts[release].digest:
                    state = state.changed(release, **changes)
            if state != before:
                store_state(layout, state)


@contextmanager
def always_published(root: Path) -> Iterator[None]:
    """Publish the failure of a run and its reason; only SIGKILL is not reported.

    The error is raised again.
    """
    try:
        yield
    except BaseException as error:
        # The caller must get the error, even if the status can't be published.
        with suppress(Exception):
            _publish_failure(root, as_error(error))
        raise


def _publish_failure(root: Path, error: ProvisionError) -> None:
    desired = last_desired(root) or Desired()
    status = failed_status(error, time=int(time.time()))
    # The run may have failed because the host can't be observed.
    with suppress(Exception):
        observed = observe(root, desired, ask=lambda _argv: None)
        planned = plan(desired, observed)
        status = status_of(desired, observed, planned, time=int(time.time()), error=error)
    with ExitStack() as lock:
        with suppress(ProvisionError, OSError):
            lock.enter_context(switching(root, limit=_PUBLISH_SECONDS))
        publish(root, status, desired.config)
