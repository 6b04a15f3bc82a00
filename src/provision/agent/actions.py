"""Carries out single actions of a plan. Loads the modules that build, and the engine's SDK."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import cached_property

from provision.agent.model import Action, KernelArtifact, Observed, Outcome, Run
from provision.agent.prepare import Preparation, reason_of, settings_of, shutdown_delayed
from provision.agent.rollback import choose, reject
from provision.build.diagnosis import BuildError
from provision.build.workspace import Settings
from provision.documents import load_json
from provision.errors import InUseError, NotFoundError, ProvisionError, as_error
from provision.kmod.host_modules import record_loaded, unloading
from provision.kmod.load import load, unload
from provision.kmod.refusals import UnfitModuleError
from provision.manifest import MANIFEST, Manifest
from provision.progress import Note, report
from provision.store.artifact_lookup import asks_registries
from provision.store.install import activate_entry, deactivate
from provision.store.layout import Layout
from provision.store.locks import changing
from provision.store.state import IN_USE, Failure, NewerStateError, update_state


class Actions:
    """The actions of a run; the caller holds the host's lock, except for ``prepare``."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def _settings(self) -> Settings:
        return settings_of(self.run)

    def close(self) -> None:
        """Close the connections to the engine, if it was opened."""
        if "_settings" in vars(self):
            self._settings.connection.close()

    def do(self, action: Action, observed: Observed) -> Outcome:
        """Carry out an action; an error is recorded and becomes part of the outcome."""
        report(Note(str(action)))
        steps = {
            "prepare": self._prepare,
            "unload": self._unload,
            "activate": self._activate,
            "load": self._load,
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
            return Preparation(
                self._settings, self.run, action.driver, action.kernel, artifact
            ).prepare()

    def _unload(self, action: Action, observed: Observed) -> str:
        """Unload the modules of the active artifact, and those that the next artifact replaces."""
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
                        load_json(entry / MANIFEST, Manifest),
                        options=setting.options if setting else {},
                        root=root,
                    )
        return f"unloaded {', '.join(done) or 'nothing'}"

    def _activate(self, action: Action, observed: Observed) -> str:
        layout = Layout(self.run.root, action.driver)
        entry = layout.entry(_artifact(observed, action).digest or "")
        activate_entry(layout, entry)
        try:
            update_state(layout, lambda state: state.model_copy(update={"activated": entry.name}))
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
            manifest = load_json(entry / MANIFEST, Manifest)
            done = load(entry, manifest, options=options, root=root)
            if artifact.known.load_failure is not None:
                update_state(layout, lambda state: state.changed(action.kernel, load_failure=None))
            problems = record_loaded(root, entry, manifest)
        return "; ".join([f"loaded {', '.join(done) or 'nothing'}", *problems])

    def _retire(self, action: Action, _observed: Observed) -> str:
        deactivate(Layout(self.run.root, action.driver))
        return f"{action.driver} is out of use; 'provision gc' removes its artifacts"

    def fall_back(self, action: Action, observed: Observed, error: ProvisionError) -> bool:
        """Fall back to the previous artifact, because the modules of this one could not be loaded.

        An artifact is rejected only for what is wrong with itself. After any other error it is
        tried again when a pause is over, which grows. Without the device, or while that is in use,
        no artifact could be loaded.

        Returns:
            Whether there is a previous artifact, which the kernel now uses.
        """
        artifact = _artifact(observed, action)
        layout = Layout(self.run.root, action.driver)
        if artifact.known.previous is None or isinstance(error, NotFoundError | InUseError):
            return False
        failure = _failure_of(error, artifact.inputs, before=artifact.known.load_failure)
        is_final = isinstance(error, UnfitModuleError)
        failure = failure.model_copy(update={"reason": "load", "final": is_final})
        with changing(layout):
            try:
                _now, digest = choose(layout, action.kernel)
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
        field = "failure" if action.kind == "prepare" else "load_failure"
        failure = _failure_of(error, artifact.inputs, before=getattr(artifact.known, field))
        changes: dict[str, object] = {}
        if action.kind != "prepare":
            if failure.reason != IN_USE:
                changes = {"reason": action.kind}
        elif self.run.mode.update and artifact.is_current:
            # The requested artifact exists. Only a newer version that can't be built is recorded,
            # and not as final: a still newer one may build.
            if failure.reason not in {"build", "compile"}:
                return failure
            changes = {"final": False}
        elif failure.reason == "compile" and asks_registries(self._settings):
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


def _failure_of(error: ProvisionError, inputs: str, *, before: Failure | None) -> Failure:
    """Return the record of an error for the state.

    A compiler that refused a source refuses it again until an input changes. Other errors may
    disappear, so every run retries; a build is retried after a pause that grows.
    """
    is_same = before is not None and before.inputs == inputs
    reason = reason_of(error)
    return Failure(
        reason=reason,
        message=error.message,
        resolution=error.resolution,
        details=error.details,
        inputs=inputs,
        time=int(time.time()),
        attempts=before.attempts + 1 if before is not None and is_same else 1,
        final=reason in {"compile", "rejected"},
        log=str(error.log) if isinstance(error, BuildError) and error.log else None,
    )
