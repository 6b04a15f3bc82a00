"""One run of the agent: observe → plan → apply, and say how the host is then."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from provision.agent.model import Desired, Observed
from provision.agent.observe import observe
from provision.agent.outcome import Outcome
from provision.agent.places import host_lock
from provision.agent.plan import Key, Mode, Plan, plan
from provision.agent.publish import publish
from provision.agent.status import Status, status_of
from provision.files import lock
from provision.install.layout import Layout
from provision.install.state import load_state, store_state
from provision.install.store import remove_leftovers
from provision.progress import Note, Progress, silent

if TYPE_CHECKING:
    from provision.agent.execute import Executor

_WAITING = "Another provision is at work on this host; waiting for it"


@dataclass(frozen=True, slots=True)
class Result:
    """What a run did.

    Attributes:
        outcomes: What was done, in its order.
        status: How the host is now.
        problems: What could not be written down.
    """

    outcomes: tuple[Outcome, ...]
    status: Status
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """What a run works on.

    Attributes:
        root: Root of the host.
        desired: What it should have.
        mode: How to go about it.
        catalogues: Further folders of drivers.
        progress: Told what goes on.
        coming: Kernels that may boot next, besides those that the host tells of.
    """

    root: Path
    desired: Desired
    mode: Mode = field(default_factory=Mode)
    catalogues: Sequence[Path] = ()
    progress: Progress = silent
    coming: tuple[str, ...] = ()


def look_at(root: Path, desired: Desired, mode: Mode | None = None) -> tuple[Plan, Status]:
    """Return what an apply would do on a host, and how the host is, without changing it."""
    observed = observe(root, desired)
    planned = plan(desired, observed, mode)
    return planned, status_of(desired, observed, planned, time=int(time.time()))


def apply(run: Run) -> Result:
    """Do what has to be done on a host.

    Every failure is remembered and part of the result; others' work goes on.

    Raises:
        OSError: The store can't be written.
    """
    with held(run.root, run.progress):
        return apply_held(run)


def apply_held(run: Run, *, whole: Desired | None = None) -> Result:
    """As ``apply``, for a caller that holds the host's lock.

    Args:
        run: What to work on.
        whole: What the host should have, where the run is about a part of it.
    """
    for driver in run.desired.drivers:
        _clean(Layout(run.root, driver.name), run.progress)
    observed = observe(run.root, run.desired, coming=run.coming)
    outcomes = tuple(_carry_out(run, observed))
    if outcomes or whole is not None:
        observed = observe(run.root, whole or run.desired, coming=run.coming)
    return _finish(replace(run, desired=whole or run.desired), observed, outcomes)


@contextmanager
def held(root: Path, progress: Progress) -> Iterator[None]:
    """Hold the host's lock: two agents never work at once; the second waits and says so."""
    with lock(host_lock(root), on_wait=lambda: progress(Note(_WAITING))):
        yield


def _finish(run: Run, observed: Observed, outcomes: tuple[Outcome, ...]) -> Result:
    """Publish how the host is."""
    observed = _with_failures(observed, outcomes)
    _remember_stamps(run, observed)
    return _publish(run, observed, plan(run.desired, observed), outcomes)


def _publish(run: Run, observed: Observed, planned: Plan, outcomes: tuple[Outcome, ...]) -> Result:
    status = status_of(run.desired, observed, planned, time=int(time.time()))
    problems = publish(run.root, status, outcomes, textfile=run.desired.textfile)
    for problem in problems:
        run.progress(Note(problem))
    return Result(outcomes, status, tuple(problems))


def _with_failures(observed: Observed, outcomes: Iterable[Outcome]) -> Observed:
    """Return the same with what failed in this run and could not be written down."""
    drivers = dict(observed.drivers)
    # What succeeded in the end is no failure.
    for outcome in {outcome.action.key: outcome for outcome in outcomes}.values():
        kind, name, release = outcome.action.key
        slots = drivers[name].slots if name in drivers else {}
        slot = slots.get(release)
        if outcome.failure is None or slot is None or slot.failure or slot.load_failure:
            continue
        if kind != "prepare":
            slot = replace(slot, load_failure=outcome.failure)
        elif not slot.is_current:
            slot = replace(slot, failure=outcome.failure)
        drivers[name] = replace(drivers[name], slots={**slots, release: slot})
    return replace(observed, drivers=drivers)


def _carry_out(run: Run, observed: Observed) -> Iterator[Outcome]:
    """Yield what becomes of each action; after each, the host is looked at and planned anew."""
    tried: frozenset[Key] = frozenset()
    executor: Executor | None = None
    try:
        while True:
            planned = plan(run.desired, observed, run.mode, tried=tried)
            left = planned.actions
            if not left:
                return
            if left[0].kind == "prepare":
                # That may take minutes, in which others want to know what goes on.
                _publish(run, observed, planned, ())
            if executor is None:
                # Loads the engine's SDK, the archive and the models of manifests.
                execute = importlib.import_module("provision.agent.execute")
                executor = execute.Executor(
                    run.root, run.desired, run.mode, run.catalogues, run.progress
                )
            tried |= {left[0].key}
            outcome = executor.do(left[0], observed)
            run.progress(Note(outcome.result))
            yield outcome
            if _has_lost_driver(run, outcome, tried) and outcome.error is not None:
                fell_back = executor.fall_back(left[0], observed, outcome.error)
                again = {"activate", "load"} if fell_back else set()
                tried -= {key for key in tried if key[0] in again and key[1] == left[0].driver}
            observed = observe(run.root, run.desired, coming=run.coming)
    finally:
        if executor is not None:
            executor.close()


def _has_lost_driver(run: Run, outcome: Outcome, tried: frozenset[Key]) -> bool:
    """Whether modules could not be loaded that took the place of others, or at a boot."""
    action = outcome.action
    is_new = ("unload", action.driver, action.kernel) in tried or not run.mode.may_prepare
    return action.kind == "load" and outcome.error is not None and is_new


def _clean(layout: Layout, progress: Progress) -> None:
    """Remove what killed runs left behind."""
    folders = [layout.folder, layout.kernels]
    if not any(
        path.name.startswith(".") and path != layout.lock for f in folders for path in _in(f)
    ):
        return
    with lock(layout.lock):
        for path in remove_leftovers(layout):
            progress(Note(f"Removed what an interrupted run left behind: {path}"))


def _in(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _remember_stamps(run: Run, observed: Observed) -> None:
    """Note that artifacts were compared with their manifests, so that this isn't done again."""
    for driver in observed.drivers.values():
        layout = Layout(run.root, driver.name)
        state = changed = load_state(layout)
        for release, slot in driver.slots.items():
            if slot.stamp is not None and state.of(release).stamp != slot.stamp:
                changed = changed.updated(release, replace(changed.of(release), stamp=slot.stamp))
        if changed != state:
            with suppress(OSError):
                store_state(layout, changed)
