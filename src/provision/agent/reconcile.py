"""One run of the agent: observe → plan → apply, then publish the host's status.

Artifacts are activated under the host's lock, by a plan from an observation under the same lock.
Builds and pulls run without that lock; afterwards, the host is observed again
(docs/decisions/19-agent.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from provision.agent.conclusion import Result, conclude, publish_status
from provision.agent.loaders import write_loaders
from provision.agent.model import Action, Desired, Key, Mode, Observed, Outcome, Plan, Run
from provision.agent.observe import observe
from provision.agent.plan import plan
from provision.agent.status import Status, status_of
from provision.progress import Note, Progress
from provision.store.entries import remove_leftovers
from provision.store.layout import Layout
from provision.store.locks import building, changing, switching

if TYPE_CHECKING:
    from provision.agent.execute import Executor


def look_at(
    root: Path, desired: Desired, mode: Mode | None = None, *, coming: tuple[str, ...] = ()
) -> tuple[Plan, Status]:
    """Return the plan of an apply and the host's status, without changing the host."""
    observed = observe(root, desired, coming=coming)
    planned = plan(desired, observed, mode)
    return planned, status_of(desired, observed, planned, time=int(time.time()))


def apply(run: Run) -> Result:
    """Bring a host to its desired state.

    Every failure is recorded and part of the result; other drivers' actions go on. A caller that
    holds the host's lock must not allow builds and pulls (``Mode.may_prepare``).

    Raises:
        InUseError: Another process holds a lock for too long.
        OSError: The store can't be written.
    """
    with switching(run.root, run.progress):
        for driver in run.desired.drivers:
            layout = Layout(run.root, driver.name)
            clean(layout, run.progress)
            if run.coming:
                from provision.agent.coming_kernels import announce  # noqa: PLC0415 - rarely needed

                announce(layout, run.coming, run.root)
    work = _Work(run)
    try:
        return work.carry_out()
    finally:
        work.close()


class _Work:
    """The progress of a run.

    Attributes:
        run: The run's context.
        outcomes: The outcomes of its actions so far.
        tried: The actions that are not repeated.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.outcomes: list[Outcome] = []
        self.tried: frozenset[Key] = frozenset()
        self._executor: Executor | None = None

    def carry_out(self) -> Result:
        """Carry out all actions; after each, the host is observed and planned for again."""
        with ExitStack() as stack:
            is_builder = False
            while True:
                served = self._serve()
                if isinstance(served, Result):
                    return served
                if not is_builder:
                    is_builder = True
                    if stack.enter_context(building(self.run.root, self.run.progress)):
                        # Another run has built meanwhile: plan again.
                        continue
                self._do(*served)

    def _serve(self) -> Result | tuple[Action, Observed]:
        """Carry out the actions that need no new artifact, under the host's lock.

        Returns:
            The result of the run; or the first action that makes an artifact, with the observation
            that it was planned from.
        """
        run = self.run
        with switching(run.root, run.progress):
            while True:
                observed = observe(run.root, run.desired, coming=run.coming)
                planned = plan(run.desired, observed, run.mode, tried=self.tried)
                if not planned.actions:
                    return self._concluded(observed)
                action = planned.actions[0]
                if action.kind == "prepare":
                    # That may take minutes, in which the status shows what is planned.
                    status = status_of(run.desired, observed, planned, time=int(time.time()))
                    publish_status(run.root, run.desired, status, progress=run.progress)
                    return action, observed
                outcome = self._do(action, observed)
                if _has_lost_driver(run, outcome, self.tried):
                    self._fall_back(outcome, observed)

    def _concluded(self, observed: Observed) -> Result:
        run = self.run
        if run.mode.may_prepare:
            write_loaders(run.root, run.desired, run.progress)
        if run.whole is not None:
            observed = observe(run.root, run.whole, coming=run.coming)
        desired = run.whole or run.desired
        return conclude(run.root, desired, observed, tuple(self.outcomes), progress=run.progress)

    def _do(self, action: Action, observed: Observed) -> Outcome:
        self.tried |= {action.key}
        outcome = self._executing().do(action, observed)
        self.run.progress(Note(outcome.result))
        self.outcomes.append(outcome)
        return outcome

    def _fall_back(self, outcome: Outcome, observed: Observed) -> None:
        """Fall back to the previous artifact, and have it activated and loaded."""
        action = outcome.action
        if outcome.error is None:
            return
        if self._executing().fall_back(action, observed, outcome.error):
            again = {"activate", "load"}
            self.tried -= {k for k in self.tried if k[0] in again and k[1] == action.driver}

    def _executing(self) -> Executor:
        if self._executor is None:
            # Loads the engine's SDK, the archive and the models of manifests.
            from provision.agent.execute import Executor  # noqa: PLC0415 - a run may do nothing

            self._executor = Executor(self.run)
        return self._executor

    def close(self) -> None:
        """Close the connections to the engine, if it was opened."""
        if self._executor is not None:
            self._executor.close()


def _has_lost_driver(run: Run, outcome: Outcome, tried: Iterable[Key]) -> bool:
    """Whether loading failed at a boot, or after other modules were unloaded for these."""
    action = outcome.action
    is_new = ("unload", action.driver, action.kernel) in tried or not run.mode.may_prepare
    return action.kind == "load" and outcome.error is not None and is_new


def clean(layout: Layout, progress: Progress) -> None:
    """Remove leftovers of killed runs, and put back entries that they were replacing."""
    folders = [layout.folder, layout.kernels]
    if not any(
        path.name.startswith(".") and path != layout.lock for f in folders for path in _in(f)
    ):
        return
    with changing(layout, progress):
        for path in remove_leftovers(layout):
            progress(Note(f"Removed a leftover of an interrupted run: {path}"))


def _in(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:
        return
