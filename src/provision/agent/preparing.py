"""Prepares artifacts: finds, pulls or builds them, and links them to their kernel in the store.

A build may take hours, in which other processes may change the host. So no lock is held meanwhile,
and the end of a build checks whether the decision still applies.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

from provision.agent.coming_kernels import shutdown_delayed
from provision.agent.desired import setting_fingerprint, settled_version
from provision.agent.failures import older, rejected, removed_again
from provision.agent.loaders import give_loader
from provision.agent.model import Action, DesiredDriver, KernelArtifact, Observed, Run
from provision.build.image import open_engine
from provision.build.package_store import PackageGoneError
from provision.build.request import DriverRequest
from provision.build.resolve import Resolved, resolve_pin
from provision.build.workspace import Settings, load_settings
from provision.distros.debian import compare_versions
from provision.engine.docker_api import Engine, EngineLostError
from provision.errors import ProvisionError
from provision.host.kernels import kernel_release
from provision.kmod.verify import files_fingerprint, stored_manifest
from provision.pin import Pin
from provision.progress import Note
from provision.registry.find import SearchOptions
from provision.registry.registries import TrustOverride
from provision.store.artifact_lookup import look_for
from provision.store.entries import link_kernel, linked_kernels
from provision.store.layout import Layout
from provision.store.locks import changing
from provision.store.obtaining import obtain
from provision.store.pulling import Obtained, obtain_pulled
from provision.store.state import (
    DriverState,
    KernelState,
    load_state,
    refuse_newer,
    store_state,
    update_state,
)

# How often a lost engine is tried again: an upgrade restarts it within seconds.
_RECONNECTIONS = 30
_RECONNECT_SECONDS = 2.0
# Garbage collection may remove an entry that no link names yet, but not several times by accident.
_ATTEMPTS = 3


@dataclass
class Preparer:
    """Makes the artifacts of a run."""

    run: Run

    @cached_property
    def settings(self) -> Settings:
        """The settings of builds, which are read at the first use."""
        return replace(
            load_settings(self.run.root, catalogues=self.run.catalogues), usr=self.run.usr
        )

    @cached_property
    def engine(self) -> Engine:
        """The container engine.

        Raises:
            NotFoundError: No engine answers.
        """
        return open_engine(self.settings)

    def close(self) -> None:
        """Close the connections to the engine, if it was opened."""
        if "engine" in vars(self):
            self.engine.close()

    def prepare(self, action: Action, observed: Observed) -> str:
        """Put the artifact for a kernel into the store, and point the kernel's link to it.

        Returns:
            The result in one line.

        Raises:
            RejectedError: The artifact was rolled back from.
            NewerStateError: A newer provision wrote the driver's state.
            ProvisionError: The artifact is not available.
        """
        refuse_newer(Layout(self.run.root, action.driver))
        artifact = observed.drivers[action.driver].artifacts[action.kernel]
        driver = next(d for d in self.run.desired.drivers if d.name == action.driver)
        is_next = action.kernel != observed.kernels.running and observed.is_live
        why = f"building {action.driver} for the kernel that boots next"
        with shutdown_delayed(self.run.root, why) if is_next else nullcontext():
            done = self._pull(driver, action, artifact)
            if done is not None:
                return done
            resolved = self._resolve(driver, action)
            pin = resolved.pin
            if self.stays(artifact, pin):
                self._forget_failure(action)
                return _kept(artifact, pin)
            self._refuse_older(driver, action, artifact, pin)
            self._refuse_rejected(action, artifact, pin)
            is_damaged = artifact.is_damaged(pin.short_digest)
            for _ in range(_ATTEMPTS):
                try:
                    obtained = self._obtain(resolved, replace=is_damaged)
                except PackageGoneError as error:
                    resolved = self._solved_again(driver, action, artifact, resolved, error)
                    obtained = self._obtain(resolved, replace=is_damaged)
                result = self._link(action, driver, artifact, obtained)
                if result is not None:
                    return result
        raise removed_again(obtained.entry)

    def _pull(self, driver: DesiredDriver, action: Action, artifact: KernelArtifact) -> str | None:
        """Put the artifact of a registry into the store, and point the kernel's link to it.

        Returns:
            The result in one line; None: no registry has the artifact, so it has to be built.

        Raises:
            RejectedError: The artifact was rolled back from.
            UntrustedError: The image lacks a trusted signature.
            ProvisionError: The artifact is missing or older, or no key is trusted.
        """
        consent = TrustOverride(allow_downgrade=self.run.mode.allow_downgrade)
        request = self.request(driver, action)
        lookup = SearchOptions(consent, progress=self.run.progress)
        trusted = look_for(self.settings, request, lookup)
        if trusted is None:
            return None
        pin = trusted.image.pin
        if self.stays(artifact, pin):
            self._forget_failure(action)
            return _kept(artifact, pin)
        self.refuse_pulled(driver, action, artifact, pin)
        is_damaged = artifact.is_damaged(pin.short_digest)
        for _ in range(_ATTEMPTS):
            obtained = obtain_pulled(
                self.settings, trusted, consent, replace=is_damaged, progress=self.run.progress
            )
            result = self._link(action, driver, artifact, obtained)
            if result is not None:
                return result
        raise removed_again(obtained.entry)

    def stays(self, artifact: KernelArtifact, pin: Pin) -> bool:
        """Return whether a run that looks for newer versions keeps the existing artifact."""
        if not (self.run.mode.update and artifact.is_current) or artifact.version is None:
            return False
        return compare_versions(pin.driver.version, artifact.version) <= 0

    def refuse_pulled(
        self, driver: DesiredDriver, action: Action, artifact: KernelArtifact, pin: Pin
    ) -> None:
        """Refuse a registry's artifact that is older than the installed one or was rejected.

        Raises:
            RejectedError: It was rolled back from.
            ProvisionError: It is older.
        """
        if not self.run.mode.allow_downgrade:
            # The serial only orders signatures: an old version may be signed again.
            self._refuse_older(driver, action, artifact, pin)
        self._refuse_rejected(action, artifact, pin)

    def _refuse_rejected(self, action: Action, artifact: KernelArtifact, pin: Pin) -> None:
        """Refuse an artifact that was rolled back from, unless the mode is a retry.

        Raises:
            RejectedError: It was rolled back from.
        """
        if pin.short_digest in artifact.known.rejected and not self.run.mode.retry:
            raise rejected(pin.short_digest, action.driver, action.kernel)

    def _refuse_older(
        self, driver: DesiredDriver, action: Action, artifact: KernelArtifact, pin: Pin
    ) -> None:
        """Refuse to replace a version by an older one for the same setting.

        Raises:
            ProvisionError: The new version is older.
        """
        known = load_state(Layout(self.run.root, driver.name)).of(action.kernel)
        if (
            known.wanted != setting_fingerprint(driver)
            or not artifact.is_whole
            or artifact.version is None
        ):
            return
        if compare_versions(pin.driver.version, artifact.version) < 0:
            raise older(pin, artifact.version)

    def _solved_again(
        self,
        driver: DesiredDriver,
        action: Action,
        artifact: KernelArtifact,
        before: Resolved,
        gone: PackageGoneError,
    ) -> Resolved:
        """Return a Pin of existing packages, in place of one whose packages the mirror has removed.

        Raises:
            PackageGoneError: The driver's source is gone.
            RejectedError: The artifact was rolled back from.
            ProvisionError: There is no solution.
        """
        if gone.sha256 not in {package.sha256 for package in before.pin.closure}:
            raise gone
        self.run.progress(Note(f"{gone.message} Solving the closure of packages again"))
        resolved = self._resolve(driver, action, update=True)
        self._refuse_rejected(action, artifact, resolved.pin)
        return resolved

    def _obtain(self, resolved: Resolved, *, replace: bool) -> Obtained:
        """Put the artifact into the store; wait for an engine that is restarted meanwhile."""

        def engine() -> Engine:
            return self.engine

        try:
            return obtain(
                self.settings, engine, resolved, replace=replace, progress=self.run.progress
            )
        except EngineLostError as error:
            self.run.progress(Note(f"{error.message} Waiting for the engine"))
            self._reconnect(error)
        return obtain(self.settings, engine, resolved, replace=replace, progress=self.run.progress)

    def _reconnect(self, lost: EngineLostError) -> None:
        """Connect to the engine again.

        Raises:
            EngineLostError: The engine did not come back.
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

    def _resolve(self, driver: DesiredDriver, action: Action, *, update: bool = False) -> Resolved:
        request = self.request(driver, action, update=update)
        return resolve_pin(self.settings, lambda: self.engine, request, progress=self.run.progress)

    def request(
        self, driver: DesiredDriver, action: Action, *, update: bool = False
    ) -> DriverRequest:
        """Return the request of an action, for registries or for a build."""
        return DriverRequest(
            driver=driver.name,
            kernel=action.kernel,
            version=driver.version,
            flavour=driver.flavour,
            prefer=None
            if self.run.mode.update
            else settled_version(self.run.root, driver, action.kernel),
            refresh=update,
        )

    def _link(
        self, action: Action, driver: DesiredDriver, artifact: KernelArtifact, obtained: Obtained
    ) -> str | None:
        """Point the kernel's link to the artifact, unless the driver was rolled back meanwhile.

        Returns:
            The result in one line; None: the artifact is gone again.
        """
        layout = Layout(self.run.root, driver.name)
        digest = obtained.entry.name
        with changing(layout, self.run.progress):
            manifest = stored_manifest(obtained.entry)
            if manifest is None:
                return None
            state = load_state(layout)
            known = state.of(action.kernel)
            if set(known.rejected) - set(artifact.known.rejected):
                return (
                    f"{digest} is in the store and not in use: the driver was rolled back meanwhile"
                )
            now = linked_kernels(layout).get(action.kernel)
            previous = known.previous if now in {None, digest} else now
            # If the run is killed here, the next one repeats this, with the previous artifact.
            known = known.model_copy(update={"previous": previous, "inputs": None})
            store_state(layout, state.updated(action.kernel, known))
            give_loader(layout, digest, driver, self.run.progress)
            link_kernel(layout, action.kernel, digest)
            linked = self._linked(action, driver, artifact, obtained, known)
            fingerprint = files_fingerprint(obtained.entry, manifest)
            linked = linked.model_copy(update={"fingerprint": fingerprint})
            store_state(layout, state.updated(action.kernel, linked))
        version = obtained.manifest.pin.driver.version
        return f"{version} is in the store (from: {obtained.origin})"

    def _linked(
        self,
        action: Action,
        driver: DesiredDriver,
        artifact: KernelArtifact,
        obtained: Obtained,
        known: KernelState,
    ) -> KernelState:
        """Return the state of a kernel whose link was set."""
        is_same = artifact.known.inputs == artifact.inputs and not self.run.mode.retry
        is_coming = action.kernel in self.run.coming
        announced = kernel_release(self.run.root) or "" if is_coming else known.announced
        has_not_loaded = known.failure is not None and known.failure.reason == "load"
        return KernelState(
            inputs=artifact.inputs,
            wanted=setting_fingerprint(driver),
            version=obtained.manifest.pin.driver.version,
            previous=known.previous,
            prepared=int(time.time()),
            seconds={name: round(taken, 3) for name, taken in obtained.seconds.items()},
            rejected=known.rejected if is_same else (),
            # Until it is loaded, it counts how often that failed.
            load_failure=known.failure if has_not_loaded else None,
            announced=announced,
            **(known.model_extra or {}),
        )

    def _forget_failure(self, action: Action) -> None:
        def changed(state: DriverState) -> DriverState:
            known = state.of(action.kernel).model_copy(update={"failure": None})
            return state.updated(action.kernel, known)

        update_state(Layout(self.run.root, action.driver), changed)


def _kept(artifact: KernelArtifact, pin: Pin) -> str:
    """Return why the existing artifact stays, in one line."""
    if pin.driver.version == artifact.version:
        return f"{artifact.version} is the newest"
    return f"{artifact.version} stays: the offered version is older ({pin.driver.version})"
