"""Carries out single actions of a plan.

What makes an artifact comes from outside: a run that needs none imports nothing that builds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from provision.agent.model import Action, KernelArtifact, Mode, Observed, Outcome, Run
from provision.agent.use import activate, choose, reject
from provision.errors import (
    InUseError,
    NotFoundError,
    ProvisionError,
    UnfitError,
    UntrustedError,
    as_error,
)
from provision.files import in_root
from provision.host.kernels import boot_id
from provision.kmod.load import CheckFailedError, load, record_loaded, run_check, unload, unloading
from provision.manifest import MANIFEST, load_manifest
from provision.progress import Note, report
from provision.run import beside, find_program
from provision.store.activate import deactivate
from provision.store.layout import Layout, changing
from provision.store.state import (
    DOES_NOT_LOAD,
    IN_USE,
    Failure,
    NewerStateError,
    update_state,
)

# logind answers where systemd has started it: https://www.freedesktop.org/wiki/Software/systemd/inhibit/
_LOGIND = Path("run/systemd/seats")


class Preparation(Protocol):
    """The preparation of one artifact, by ``provision.agent.prepare``."""

    def prepare(self) -> str:
        """Put the artifact into the store, and point the kernel's link to it; return the result."""

    def try_stored(self) -> str:
        """Try the artifact that the kernel uses; return the result.

        Raises:
            TrialFailedError: The kernel does not take it, and no longer uses it.
        """


# Gets driver, kernel and what was observed of the artifact.
Preparations = Callable[[str, str, KernelArtifact], Preparation]


@contextmanager
def shutdown_delayed(root: Path, why: str) -> Iterator[None]:
    """Delay a shutdown until the block ends, for as long as logind's configuration allows.

    The limit is ``InhibitDelayMaxSec`` (logind.conf(5)), 5 seconds by default: a build can delay a
    shutdown, but not prevent it. Without systemd, nothing is delayed.
    """
    if not in_root(root, _LOGIND).is_dir() or find_program("systemd-inhibit") is None:
        yield
        return
    # cat ends when this process does, and with it the inhibitor.
    what = ("--what=shutdown", "--mode=delay", "--who=provision", f"--why={why}")
    with beside(["systemd-inhibit", *what, "cat"], why="delay a shutdown"):
        yield


# What is wrong with an artifact, or its source, and not with the machine or a network.
_OF_A_NEWER_ONE = frozenset({"build", "compile", DOES_NOT_LOAD, UntrustedError.reason})


class Actions:
    """The actions of a run; the caller holds the host's lock, except for ``prepare``."""

    def __init__(self, run: Run, preparations: Callable[[], Preparations]) -> None:
        self.run = run
        self._preparations = preparations

    def do(self, action: Action, observed: Observed) -> Outcome:
        """Carry out an action; an error is recorded and becomes part of the outcome."""
        report(Note(str(action)))
        steps = {
            "prepare": self._prepare,
            "try": self._try,
            "unload": self._unload,
            "activate": self._activate,
            "load": self._load,
            "check": self._check,
            "retire": self._retire,
        }
        begun = time.monotonic()
        try:
            result = steps[action.kind](action, observed)
        # The actions of other drivers go on, and the status shows the error.
        except Exception as error:
            known = as_error(error)
            failure = self._remember(action, observed, known)
            return Outcome(action, known.message, time.monotonic() - begun, known, failure)
        return Outcome(action, result, time.monotonic() - begun)

    def _prepare(self, action: Action, observed: Observed) -> str:
        why = f"building {action.driver} for the kernel that boots next"
        is_next = observed.is_live and action.kernel != observed.kernels.running
        artifact = _artifact(observed, action)
        with shutdown_delayed(self.run.root, why) if is_next else nullcontext():
            return self._preparations()(action.driver, action.kernel, artifact).prepare()

    def _try(self, action: Action, observed: Observed) -> str:
        artifact = _artifact(observed, action)
        return self._preparations()(action.driver, action.kernel, artifact).try_stored()

    def _unload(self, action: Action, observed: Observed) -> str:
        root = self.run.root
        layout = Layout(root, action.driver)
        driver = observed.drivers[action.driver]
        artifact = driver.artifacts.get(action.kernel)
        setting = self.run.desired.drivers.get(action.driver)
        done: list[str] = []
        with changing(layout), unloading(root, action.driver):
            for digest in dict.fromkeys([driver.current, artifact.digest if artifact else None]):
                if digest and ((entry := layout.entry(digest)) / MANIFEST).is_file():
                    done += unload(
                        entry,
                        load_manifest(entry),
                        options=setting.options if setting else {},
                        root=root,
                    )
        return f"unloaded {', '.join(done) or 'nothing'}"

    def _activate(self, action: Action, observed: Observed) -> str:
        layout = Layout(self.run.root, action.driver)
        entry = layout.entry(_artifact(observed, action).digest or "")
        try:
            activate(layout, entry)
        except NewerStateError as error:
            # The artifact is active; only the state can't record it.
            report(Note(error.message))
        return f"{entry} is in use"

    def _load(self, action: Action, observed: Observed) -> str:
        root = self.run.root
        layout = Layout(root, action.driver)
        artifact = _artifact(observed, action)
        entry = layout.entry(artifact.digest or "")
        options = self.run.desired.drivers[action.driver].options
        with changing(layout):
            manifest = load_manifest(entry)
            done = load(entry, manifest, options=options, root=root)
            if artifact.known.load_failure is not None:
                update_state(layout, lambda state: state.changed(action.kernel, load_failure=None))
            problems = record_loaded(root, entry, manifest)
        return "; ".join([f"loaded {', '.join(done) or 'nothing'}", *problems])

    def _check(self, action: Action, observed: Observed) -> str:
        layout = Layout(self.run.root, action.driver)
        artifact = _artifact(observed, action)
        digest = artifact.digest or ""
        run_check(layout.entry(digest), load_manifest(layout.entry(digest)))
        before = artifact.known.checked.items()
        passed = {one: boot for one, boot in before if layout.entry(one).is_dir()}
        passed[digest] = boot_id(layout.root)
        changes = {"checked": passed, "load_failure": None}
        update_state(layout, lambda state: state.changed(action.kernel, **changes))
        return f"the check of {action.driver} passed"

    def _retire(self, action: Action, _observed: Observed) -> str:
        deactivate(Layout(self.run.root, action.driver))
        return f"{action.driver} is out of use; 'provision gc' removes its artifacts"

    def fall_back(self, action: Action, observed: Observed, error: ProvisionError) -> bool:
        """Fall back to the previous artifact: this one could not be loaded, or failed its check.

        An artifact is rejected only for what is wrong with itself. After any other error it is
        tried again when a pause is over, which grows. Without the device, or while that is in use,
        no artifact could be loaded; and one whose check has passed here before is as it was.

        Returns:
            Whether there is a previous artifact, which the kernel now uses.
        """
        artifact = _artifact(observed, action)
        layout = Layout(self.run.root, action.driver)
        if artifact.known.previous is None or isinstance(error, NotFoundError | InUseError):
            return False
        if action.kind == "check" and artifact.digest in artifact.known.checked:
            return False
        failure = failure_of(error, artifact.inputs, before=artifact.known.load_failure)
        is_final = isinstance(error, UnfitError | CheckFailedError)
        failed = f"{action.driver} {artifact.version} is not used: {failure.message}"
        changes = {"reason": action.kind, "final": is_final, "message": failed}
        failure = failure.model_copy(update=changes)
        with changing(layout):
            try:
                config = self.run.desired.config
                _now, digest = choose(layout, action.kernel, config, undoes=True)
                reject(layout, action.kernel, digest, inputs=artifact.inputs, failure=failure)
            except (NotFoundError, NewerStateError):
                return False
        report(Note(f"{action.driver} goes back to {digest}"))
        return True

    def _remember(
        self, action: Action, observed: Observed, error: ProvisionError
    ) -> Failure | None:
        """Record a failure in the state, if possible, and return it.

        Nothing is recorded of a driver that provision.toml does not name.
        """
        artifact = observed.drivers[action.driver].artifacts.get(action.kernel)
        if artifact is None:
            return None
        field = "failure" if action.kind in {"prepare", "try"} else "load_failure"
        failure = failure_of(error, artifact.inputs, before=getattr(artifact.known, field))
        changes: dict[str, object] = {}
        if field != "failure":
            if failure.reason != IN_USE:
                changes = {"reason": action.kind}
        elif action.kind == "try":
            # The artifact itself, and not a newer one.
            if failure.reason != DOES_NOT_LOAD:
                return failure
        elif is_of_no_newer(self.run.mode, artifact, failure.reason):
            return failure
        elif self.run.mode.update and artifact.is_current:
            # A still newer one may be right.
            changes = {"final": False}
        elif failure.reason == "compile" and self.run.desired.config.asks_registries:
            # An artifact that was built with a patch may be pushed.
            changes = {"final": False}
        failure = failure.model_copy(update=changes)
        layout = Layout(self.run.root, action.driver)
        try:
            update_state(layout, lambda state: state.changed(action.kernel, **{field: failure}))
        except (OSError, ProvisionError) as problem:
            # The disk may be full: the run goes on, and the host's status shows the failure.
            report(Note(f"The failure can't be recorded: {problem}"))
        return failure


def _artifact(observed: Observed, action: Action) -> KernelArtifact:
    return observed.drivers[action.driver].artifacts[action.kernel]


def is_of_no_newer(mode: Mode, artifact: KernelArtifact, reason: str) -> bool:
    """Return whether a failure says nothing: what was asked for exists, and no newer one is wrong.

    So it is not recorded, and the host is as it was.
    """
    return mode.update and artifact.is_current and reason not in _OF_A_NEWER_ONE


def failure_of(error: ProvisionError, inputs: str, *, before: Failure | None) -> Failure:
    """Return the record of an error for the state.

    A compiler that refused a source refuses it again until an input changes, and so does a kernel
    that did not take the modules. Other errors may
    disappear, so every run retries; a build is retried after a pause that grows.
    """
    is_same = before is not None and before.inputs == inputs
    reason = error.reason
    return Failure(
        reason=reason,
        message=error.message,
        resolution=error.resolution,
        details=error.details,
        inputs=inputs,
        time=int(time.time()),
        attempts=before.attempts + 1 if before is not None and is_same else 1,
        final=reason in {"compile", "rejected", DOES_NOT_LOAD},
        log=str(log) if (log := getattr(error, "log", None)) else None,
    )
