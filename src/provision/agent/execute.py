"""Carries out single actions of a plan. Loads what builds and what talks to engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from provision.agent.contents import read_contents, stamp
from provision.agent.failures import RejectedError, failure_of
from provision.agent.inhibit import shutdown_delayed
from provision.agent.inputs import wish
from provision.agent.model import Desired, DesiredDriver, Observed, Slot
from provision.agent.outcome import Outcome
from provision.agent.plan import Action, Mode
from provision.agent.previous import choose, reject
from provision.documents import load_json
from provision.errors import NotFoundError, ProvisionError
from provision.image.engine import Engine, EngineLostError
from provision.install.kernels import link_kernel
from provision.install.layout import Layout
from provision.install.state import Failure, KernelState, load_state, store_state
from provision.manifest import Manifest
from provision.modules.loading import load, unload
from provision.modules.verify import MANIFEST
from provision.pipeline.artifacts import activate_entry, retire
from provision.pipeline.images import open_engine
from provision.pipeline.obtaining import Obtained, obtain
from provision.pipeline.resolution import Resolved, Wanted, resolve_pin
from provision.pipeline.settings import Settings, load_settings
from provision.progress import Note, Progress

# For how long a lost engine is waited for: an upgrade restarts it in some seconds.
_RECONNECTIONS = 30
_RECONNECT_SECONDS = 2.0


@dataclass
class Executor:
    """Carries out actions on one host; the caller holds the host's lock.

    Attributes:
        root: Root of the host.
        desired: What it should have.
        mode: How to go about it.
        catalogues: Further folders of drivers.
        progress: Told what goes on.
    """

    root: Path
    desired: Desired
    mode: Mode
    catalogues: Sequence[Path]
    progress: Progress

    @cached_property
    def settings(self) -> Settings:
        """What builds need besides; read when the first one comes."""
        return load_settings(self.root, catalogues=self.catalogues)

    @cached_property
    def engine(self) -> Engine:
        """The container engine.

        Raises:
            NotFoundError: None answers.
        """
        return open_engine(self.settings)

    def close(self) -> None:
        """Give the engine's connections back, if there are any."""
        if "engine" in vars(self):
            self.engine.close()

    def do(self, action: Action, observed: Observed) -> Outcome:
        """Carry out an action; what it raises is remembered and becomes part of the outcome."""
        self.progress(Note(str(action)))
        begun = time.monotonic()
        steps: dict[str, Callable[[Action, Observed], str]] = {
            "prepare": self._prepare,
            "unload": self._unload,
            "activate": self._activate,
            "load": self._load,
            "retire": self._retire,
        }
        try:
            result = steps[action.kind](action, observed)
        except (ProvisionError, OSError) as error:
            told = error if isinstance(error, ProvisionError) else _disk_error(error)
            failure = self._remember(action, observed, told)
            return Outcome(action, told.message, time.monotonic() - begun, told, failure)
        return Outcome(action, result, time.monotonic() - begun)

    def fall_back(self, action: Action, observed: Observed, error: ProvisionError) -> bool:
        """Return to the artifact before, because the modules of this one could not be loaded.

        Args:
            action: The loading that failed.
            observed: What the host was like.
            error: Why it failed; a missing device would be missed by any artifact.

        Returns:
            Whether there is one, which the kernel uses now.
        """
        slot = _slot(observed, action)
        layout = Layout(self.root, action.driver)
        if slot.previous is None or isinstance(error, NotFoundError):
            return False
        try:
            _now, digest = choose(layout, action.kernel)
        except NotFoundError:
            return False
        failure = failure_of(error, slot.inputs, before=slot.load_failure, time=int(time.time()))
        failure = replace(failure, reason="load", final=True)
        self.progress(Note(f"{action.driver} goes back to {digest}"))
        reject(layout, action.kernel, digest, inputs=slot.inputs, failure=failure)
        return True

    def _prepare(self, action: Action, observed: Observed) -> str:
        """Have the artifact for a kernel in the store, and the kernel's link point to it."""
        slot = _slot(observed, action)
        driver = next(d for d in self.desired.drivers if d.name == action.driver)
        is_next = action.kernel != observed.kernels.running and observed.is_live
        why = f"building {action.driver} for the kernel that boots next"
        with shutdown_delayed(self.root, why) if is_next else nullcontext():
            resolved = self._resolve(driver, action)
            pin = resolved.pin
            if self.mode.update and slot.is_current and pin.driver.version == slot.version:
                self._update(action, failure=None)
                return f"{pin.driver.version} is the newest"
            if pin.short_digest in slot.rejected and not self.mode.retry:
                raise _rejected(pin.short_digest, driver, action)
            is_damaged = not slot.is_whole and slot.digest == pin.short_digest
            obtained = self._obtain(resolved, replace=is_damaged)
        self._link(action, driver, slot, obtained)
        return f"{pin.driver.version} is in the store (from: {obtained.origin})"

    def _obtain(self, resolved: Resolved, *, replace: bool) -> Obtained:
        """Have the artifact in the store; an engine that is restarted meanwhile is waited for."""

        def engine() -> Engine:
            return self.engine

        try:
            return obtain(self.settings, engine, resolved, replace=replace, progress=self.progress)
        except EngineLostError as error:
            self.progress(Note(f"{error.message} Waiting until it is back"))
            self._reconnect(error)
        return obtain(self.settings, engine, resolved, replace=replace, progress=self.progress)

    def _reconnect(self, lost: EngineLostError) -> None:
        """Connect to the engine again.

        Raises:
            EngineLostError: It did not come back.
        """
        self.close()
        vars(self).pop("engine", None)
        for _ in range(_RECONNECTIONS):
            time.sleep(_RECONNECT_SECONDS)
            try:
                self.engine.image("none")
            except ProvisionError:
                vars(self).pop("engine", None)
            else:
                return
        raise lost

    def _resolve(self, driver: DesiredDriver, action: Action) -> Resolved:
        wanted = Wanted(
            driver=driver.name,
            kernel=action.kernel,
            version=None if driver.version == "latest" else driver.version,
            flavour=driver.flavour,
            prefer=None if self.mode.update else self._settled(driver, action.kernel),
        )
        return resolve_pin(self.settings, lambda: self.engine, wanted, progress=self.progress)

    def _settled(self, driver: DesiredDriver, release: str) -> str | None:
        """Return the version that was chosen for the same wish, for this kernel or another.

        Versions stay until somebody asks for another or a newer one: also for new kernels.
        """
        known = load_state(Layout(self.root, driver.name))
        candidates = [known.of(release), *known.kernels.values()]
        mine = wish(driver)
        return next((k.version for k in candidates if k.wish == mine and k.version), None)

    def _link(self, action: Action, driver: DesiredDriver, slot: Slot, obtained: Obtained) -> None:
        layout = Layout(self.root, driver.name)
        digest = obtained.entry.name
        contents = read_contents(obtained.entry)
        link_kernel(layout, action.kernel, digest)
        state = load_state(layout)
        known = state.of(action.kernel)
        is_same = known.inputs == slot.inputs and not self.mode.retry
        changed = KernelState(
            inputs=slot.inputs,
            wish=wish(driver),
            version=obtained.manifest.pin.driver.version,
            previous=known.previous if slot.digest in {None, digest} else slot.digest,
            stamp=stamp(obtained.entry, contents) if contents else None,
            prepared=int(time.time()),
            seconds={name: round(taken, 3) for name, taken in obtained.seconds.items()},
            rejected=known.rejected if is_same else (),
        )
        store_state(layout, state.updated(action.kernel, changed))

    def _unload(self, action: Action, observed: Observed) -> str:
        """Unload the modules of the artifact in use, and those that the next one replaces."""
        layout = Layout(self.root, action.driver)
        driver = observed.drivers[action.driver]
        slot = driver.slots.get(action.kernel)
        digests = [driver.current, slot.digest if slot else None]
        done: list[str] = []
        for digest in dict.fromkeys(digests):
            if digest and (layout.entry(digest) / MANIFEST).is_file():
                manifest = load_json(layout.entry(digest) / MANIFEST, Manifest)
                done += unload(manifest, root=self.root, progress=self.progress)
        return f"unloaded {', '.join(done) or 'nothing'}"

    def _activate(self, action: Action, observed: Observed) -> str:
        layout = Layout(self.root, action.driver)
        entry = layout.entry(_slot(observed, action).digest or "")
        activate_entry(layout, entry, progress=self.progress)
        store_state(layout, replace(load_state(layout), activated=entry.name))
        return f"{entry} is in use"

    def _retire(self, action: Action, observed: Observed) -> str:
        del observed
        retire(Layout(self.root, action.driver), progress=self.progress)
        return f"{action.driver} is out of use; 'provision gc' removes its artifacts"

    def _load(self, action: Action, observed: Observed) -> str:
        layout = Layout(self.root, action.driver)
        entry = layout.entry(_slot(observed, action).digest or "")
        driver = next(d for d in self.desired.drivers if d.name == action.driver)
        manifest = load_json(entry / MANIFEST, Manifest)
        done = load(entry, manifest, options=driver.options, root=self.root, progress=self.progress)
        self._update(action, load_failure=None)
        return f"loaded {', '.join(done) or 'nothing'}"

    def _remember(
        self, action: Action, observed: Observed, error: ProvisionError
    ) -> Failure | None:
        """Write down what failed, if that can be done, and return it.

        Of a driver that is not wanted nothing is remembered.
        """
        slot = observed.drivers[action.driver].slots.get(action.kernel)
        if slot is None:
            return None
        is_preparing = action.kind == "prepare"
        before = slot.failure if is_preparing else slot.load_failure
        failure = failure_of(error, slot.inputs, before=before, time=int(time.time()))
        if not is_preparing:
            failure = replace(failure, reason=action.kind)
        elif self.mode.update and slot.is_current:
            # What is there is what was asked for. Only a newer one that can't be built is worth
            # remembering, and not for ever: there may be an even newer one.
            if failure.reason not in {"build", "compile"}:
                return failure
            failure = replace(failure, final=False)
        name = "failure" if is_preparing else "load_failure"
        try:
            self._update(action, **{name: failure})
        except OSError as problem:
            # A full disk, likely: the run goes on, and the host's status has it all the same.
            self.progress(Note(f"What failed can't be remembered: {problem}"))
        return failure

    def _update(self, action: Action, **changes: Any) -> None:  # noqa: ANN401 - fields of the state
        layout = Layout(self.root, action.driver)
        state = load_state(layout)
        changed = replace(state.of(action.kernel), **changes)
        store_state(layout, state.updated(action.kernel, changed))


def _slot(observed: Observed, action: Action) -> Slot:
    return observed.drivers[action.driver].slots[action.kernel]


def _rejected(digest: str, driver: DesiredDriver, action: Action) -> RejectedError:
    return RejectedError(
        f"What would be made of {driver.name} for {action.kernel} is the artifact {digest}, which"
        " somebody rolled back from.",
        resolution="Ask for another version in provision.toml, or take it all the same:"
        " provision apply --retry.",
    )


def _disk_error(error: OSError) -> ProvisionError:
    what = f"'{error.filename}': " if error.filename else ""
    return ProvisionError(
        f"{what}{error.strerror or error}.",
        resolution="Make room, or make the folder writable, and run 'provision apply' again.",
    )
