"""Makes artifacts: finds, pulls or builds them, and links them to their kernel in the store.

A build may take hours, in which other processes may change the host. So no lock is held meanwhile,
and the end of a build checks whether the decision still applies.

A forecast says beforehand where each artifact would come from. It queries registries, archives,
vendors and the engine as an apply does, builds nothing, and writes nothing but their answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from provision.agent.desired import setting_fingerprint, settled_version
from provision.agent.model import (
    UNAVAILABLE,
    Action,
    DesiredDriver,
    KernelArtifact,
    Observed,
    Plan,
    Run,
)
from provision.build.diagnosis import kind_of
from provision.build.image import open_engine
from provision.build.package_store import PackageGoneError
from provision.build.request import DriverRequest
from provision.build.resolve import Resolved, resolve_pin
from provision.build.workspace import Settings, load_settings
from provision.distros.debian import compare_versions
from provision.engine.docker_api import Engine, EngineLostError
from provision.errors import ExitCode, NotFoundError, ProvisionError
from provision.files import in_root
from provision.host.kernels import kernel_release
from provision.kmod.load import ModuleInUseError
from provision.kmod.loader import try_write_loader
from provision.kmod.verify import files_fingerprint, stored_manifest
from provision.pin import Pin
from provision.progress import Event, Note
from provision.registry.find import SearchOptions, TrustOverride
from provision.registry.signatures import UntrustedError
from provision.run import beside, find_program
from provision.sources.upstream import Ended, ended_branch, kept, known_branches, today
from provision.store.artifact_lookup import MissingArtifactError, asks_registries, look_for
from provision.store.availability import version_to_build
from provision.store.entries import link_kernel, linked_kernels
from provision.store.layout import Layout
from provision.store.locks import changing
from provision.store.obtain import Stored, obtain, store_pulled
from provision.store.state import (
    IN_USE,
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
# logind answers where systemd has started it: https://www.freedesktop.org/wiki/Software/systemd/inhibit/
_LOGIND = Path("run/systemd/seats")


class RejectedError(ProvisionError):
    """The artifact would be one that was rolled back from."""


def reason_of(error: ProvisionError) -> str:
    """Return the kind of an error, as status and metrics name it."""
    match error:
        case RejectedError():
            return "rejected"
        case UntrustedError():
            return "untrusted"
        case MissingArtifactError():
            return "no-artifact"
        case ModuleInUseError():
            return IN_USE
        case _:
            return kind_of(error)


class Preparer:
    """Makes the artifacts of a run; reads the settings and opens the engine at their first use."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def settings(self) -> Settings:
        """The settings of builds."""
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
            del self.engine

    def reconnect(self, lost: EngineLostError) -> None:
        """Wait for an engine that is restarted."""
        self.run.progress(Note(f"{lost.message} Waiting for the engine"))
        self.close()
        for _ in range(_RECONNECTIONS):
            time.sleep(_RECONNECT_SECONDS)
            try:
                self.engine.image("none")
            except ProvisionError:
                vars(self).pop("engine", None)
            else:
                return
        raise lost

    def prepare(self, action: Action, observed: Observed) -> str:
        """Put the artifact for a kernel into the store, and point the kernel's link to it.

        Returns:
            The result in one line.

        Raises:
            RejectedError: The artifact was rolled back from.
            NewerStateError: A newer provision wrote the driver's state.
        """
        refuse_newer(Layout(self.run.root, action.driver))
        driver = next(d for d in self.run.desired.drivers if d.name == action.driver)
        artifact = observed.drivers[action.driver].artifacts[action.kernel]
        is_next = action.kernel != observed.kernels.running and observed.is_live
        why = f"building {action.driver} for the kernel that boots next"
        delayed: AbstractContextManager[None] = nullcontext()
        if is_next:
            delayed = shutdown_delayed(self.run.root, why)
        with delayed:
            return Preparation(self, driver, action.kernel, artifact).prepare()


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


@dataclass(frozen=True, slots=True)
class Forecast:
    """Where the artifact of a driver for a kernel would come from."""

    driver: str
    kernel: str
    # ``registry`` if it is pulled, ``build`` if it is built here, ``missing`` if it is not
    # available.
    source: Literal["store", "registry", "build", "missing"]
    version: str | None = None
    # The registry's image, with its digest.
    image: str | None = None
    # Why it is built or not available.
    reason: str | None = None
    resolution: str | None = None
    # That the vendor no longer supports the version's branch.
    ended: Ended | None = None
    # The exit code that an apply has if it is not available.
    exit_code: int = ExitCode.DONE

    def __str__(self) -> str:
        words = {
            "store": f"The store has {self.version}",
            "registry": f"A registry has {self.version}: {self.image}",
            "build": f"It builds {self.version} here",
            "missing": "It is not available",
        }[self.source]
        return f"{words}: {self.reason}" if self.reason else words


def forecast(run: Run, observed: Observed, planned: Plan) -> tuple[Forecast, ...]:
    """Return the source of each driver's artifact for each kernel that may boot next."""
    making = {(a.driver, a.kernel) for a in planned.actions if a.kind == "prepare"}
    blocked = {(b.driver, b.kernel): b for b in planned.blocked if b.obstacle != "reboot-required"}
    found = []
    with closing(Preparer(run)) as preparer:
        for driver in run.desired.drivers:
            for release in observed.kernels.relevant:
                artifact = observed.drivers[driver.name].artifacts[release]
                place = (driver.name, release)
                if place in making:
                    one = Preparation(preparer, driver, release, artifact).forecast()
                elif why := blocked.get(place):
                    one = Forecast(*place, "missing", None, None, why.reason, why.resolution)
                elif artifact.is_whole:
                    one = Forecast(*place, "store", artifact.version)
                else:
                    one = Forecast(
                        *place,
                        "missing",
                        reason="artifacts are not made for kernels that do not run yet",
                        resolution="Set [policy] prebuild = true in /etc/provision/provision.toml.",
                    )
                found.append(replace(one, ended=_ended(preparer.settings, one)))
    return tuple(found)


def _ended(settings: Settings, found: Forecast) -> Ended | None:
    """Return that the vendor no longer supports a version's branch, by the vendor's last answer."""
    if found.version is None:
        return None
    try:
        upstream = settings.catalogue.entry(found.driver).recipe.upstream
    except NotFoundError:
        # The artifact is in the store, or came from a registry.
        return None
    readings = kept(upstream, machine=settings.architecture, distro=None, folder=settings.state)
    return ended_branch(found.driver, found.version, known_branches(upstream, readings), today())


@dataclass(frozen=True)
class Preparation:
    """The making of one artifact, in place of the one that was observed."""

    preparer: Preparer
    driver: DesiredDriver
    kernel: str
    artifact: KernelArtifact

    @property
    def _run(self) -> Run:
        return self.preparer.run

    @property
    def _layout(self) -> Layout:
        return Layout(self._run.root, self.driver.name)

    def prepare(self) -> str:
        """As ``Preparer.prepare``."""
        settings, progress = self.preparer.settings, self._run.progress
        consent = TrustOverride(allow_downgrade=self._run.mode.allow_downgrade)
        found = look_for(settings, self._request(), SearchOptions(consent, progress=progress))
        make: Callable[..., Stored]
        if found is not None:
            pin = found.image.pin
            make = partial(store_pulled, settings, found, consent, progress=progress)
        else:
            resolved = self._resolve()
            pin = resolved.pin
            make = partial(self._build, resolved)
        if self._keeps(pin):
            self._forget_failure()
            if pin.driver.version == self.artifact.version:
                return f"{self.artifact.version} is the newest"
            version = self.artifact.version
            return f"{version} stays: the offered version is older ({pin.driver.version})"
        self._refuse(pin, is_pulled=found is not None)
        is_damaged = self.artifact.is_damaged(pin.short_digest)
        for _ in range(_ATTEMPTS):
            obtained = make(replace=is_damaged)
            result = self._link(obtained)
            if result is not None:
                return result
        raise ProvisionError(
            f"'{obtained.entry}' is removed again and again while it is installed.",
            resolution="Look for a 'provision gc' that runs repeatedly: pgrep -af 'provision gc'",
        )

    def forecast(self) -> Forecast:
        """Look for the artifact as ``prepare`` does."""
        place = (self.driver.name, self.kernel)
        try:
            return self._forecast(place)
        except ProvisionError as error:
            is_unavailable = reason_of(error) in UNAVAILABLE
            return Forecast(
                *place,
                "missing",
                reason=error.message,
                resolution=error.resolution,
                exit_code=ExitCode.NOT_FOUND if is_unavailable else ExitCode.FAILED,
            )

    def _forecast(self, place: tuple[str, str]) -> Forecast:
        settings, request = self.preparer.settings, self._request()
        notes: list[str] = []

        def note(event: Event) -> None:
            if isinstance(event, Note):
                notes.append(event.text)

        consent = TrustOverride(allow_downgrade=self._run.mode.allow_downgrade)
        found = look_for(settings, request, SearchOptions(consent, progress=note))
        if found is None:
            reason = None
            if asks_registries(settings):
                reason = "; ".join(notes) or "no registry has it"
            version = version_to_build(
                settings, lambda: self.preparer.engine, request, progress=note
            )
            # Without an engine, nothing is built.
            self.preparer.engine  # noqa: B018 - connects
            return Forecast(*place, "build", version, reason=reason)
        pin = found.image.pin
        if self._keeps(pin):
            reason = "there is no newer one"
            return Forecast(*place, "store", self.artifact.version, reason=reason)
        self._refuse(pin, is_pulled=True)
        digest = pin.short_digest
        if self._layout.entry(digest).is_dir() and not self.artifact.is_damaged(digest):
            return Forecast(*place, "store", pin.driver.version)
        return Forecast(*place, "registry", pin.driver.version, str(found.image.reference))

    def _request(self, *, update: bool = False) -> DriverRequest:
        driver, run = self.driver, self._run
        return DriverRequest(
            driver=driver.name,
            kernel=self.kernel,
            version=driver.version,
            flavour=driver.flavour,
            prefer=None if run.mode.update else settled_version(run.root, driver, self.kernel),
            refresh=update,
        )

    def _keeps(self, pin: Pin) -> bool:
        """Return whether a run that looks for newer versions keeps the existing artifact."""
        artifact = self.artifact
        if not (self._run.mode.update and artifact.is_current) or artifact.version is None:
            return False
        return compare_versions(pin.driver.version, artifact.version) <= 0

    def _refuse(self, pin: Pin, *, is_pulled: bool) -> None:
        """Refuse an artifact that is older than the existing one, or was rolled back from."""
        # The serial of a registry's image only orders signatures: an old version may be signed
        # again.
        known = load_state(self._layout).of(self.kernel)
        if (
            not (is_pulled and self._run.mode.allow_downgrade)
            and known.wanted == setting_fingerprint(self.driver)
            and self.artifact.is_whole
            and (version := self.artifact.version) is not None
            and compare_versions(pin.driver.version, version) < 0
        ):
            name = self.driver.name
            raise ProvisionError(
                f"{name} {version} for {self.kernel} would be replaced by {pin.driver.version},"
                f" which is older: {version} is no longer offered, or the recipe does not list it"
                " for this kernel.",
                resolution="To go back on purpose, set the version in"
                f" /etc/provision/provision.toml: [drivers.{name}] version ="
                f' "{pin.driver.version}".',
            )
        self._refuse_rejected(pin)

    def _refuse_rejected(self, pin: Pin) -> None:
        if pin.short_digest in self.artifact.known.rejected and not self._run.mode.retry:
            raise RejectedError(
                f"The artifact of {self.driver.name} for {self.kernel} would again be"
                f" {pin.short_digest}, which was rolled back from.",
                resolution="Set another version in provision.toml, or accept this artifact:"
                " provision apply --retry",
            )

    def _resolve(self, *, update: bool = False) -> Resolved:
        return resolve_pin(
            self.preparer.settings,
            lambda: self.preparer.engine,
            self._request(update=update),
            progress=self._run.progress,
        )

    def _build(self, resolved: Resolved, *, replace: bool) -> Stored:
        """Put the artifact into the store; solve again for packages that the mirror has removed."""
        try:
            return self._obtain(resolved, replace=replace)
        except PackageGoneError as gone:
            if gone.sha256 not in {package.sha256 for package in resolved.pin.closure}:
                # The driver's own source is gone.
                raise
            self._run.progress(Note(f"{gone.message} Solving the closure of packages again"))
        resolved = self._resolve(update=True)
        self._refuse_rejected(resolved.pin)
        return self._obtain(resolved, replace=replace)

    def _obtain(self, resolved: Resolved, *, replace: bool) -> Stored:
        def obtained() -> Stored:
            return obtain(
                self.preparer.settings,
                lambda: self.preparer.engine,
                resolved,
                replace=replace,
                progress=self._run.progress,
            )

        try:
            return obtained()
        except EngineLostError as error:
            self.preparer.reconnect(error)
        return obtained()

    def _link(self, obtained: Stored) -> str | None:
        """Point the kernel's link to the artifact, unless the driver was rolled back meanwhile.

        Returns:
            The result in one line; None: the artifact is gone again.
        """
        layout, run, kernel = self._layout, self._run, self.kernel
        digest = obtained.entry.name
        with changing(layout, run.progress):
            manifest = stored_manifest(obtained.entry)
            if manifest is None:
                return None
            state = load_state(layout)
            known = state.of(kernel)
            if set(known.rejected) - set(self.artifact.known.rejected):
                return (
                    f"{digest} is in the store and not in use: the driver was rolled back meanwhile"
                )
            now = linked_kernels(layout).get(kernel)
            previous = known.previous if now in {None, digest} else now
            # If the run is killed here, the next one repeats this, with the previous artifact.
            known = known.model_copy(update={"previous": previous, "inputs": None})
            store_state(layout, state.updated(kernel, known))
            try_write_loader(
                obtained.entry, self.driver.options, root=run.root, progress=run.progress
            )
            link_kernel(layout, kernel, digest)
            linked = self._linked(obtained, known, files_fingerprint(obtained.entry, manifest))
            store_state(layout, state.updated(kernel, linked))
        version = obtained.manifest.pin.driver.version
        return f"{version} is in the store (from: {obtained.origin})"

    def _linked(self, obtained: Stored, known: KernelState, fingerprint: str) -> KernelState:
        """Return the state of the kernel whose link was set."""
        run = self._run
        is_same = self.artifact.known.inputs == self.artifact.inputs and not run.mode.retry
        is_coming = self.kernel in run.coming
        has_not_loaded = known.failure is not None and known.failure.reason == "load"
        return KernelState(
            inputs=self.artifact.inputs,
            wanted=setting_fingerprint(self.driver),
            version=obtained.manifest.pin.driver.version,
            previous=known.previous,
            fingerprint=fingerprint,
            prepared=int(time.time()),
            seconds={name: round(taken, 3) for name, taken in obtained.seconds.items()},
            rejected=known.rejected if is_same else (),
            # Until it is loaded, it counts how often that failed.
            load_failure=known.failure if has_not_loaded else None,
            announced=kernel_release(run.root) or "" if is_coming else known.announced,
            **(known.model_extra or {}),
        )

    def _forget_failure(self) -> None:
        update_state(
            self._layout,
            lambda state: state.updated(
                self.kernel, state.of(self.kernel).model_copy(update={"failure": None})
            ),
        )
