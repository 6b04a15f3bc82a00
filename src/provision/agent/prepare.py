"""Makes the artifacts of a plan, and says beforehand where they would come from.

A build may take hours, in which other processes may change the host. So no lock is held meanwhile,
and the end of a build checks whether the decision still applies. A forecast queries registries,
archives, vendors and the engine as an apply does, down to the Pin: it builds no driver, and writes
nothing but what a resolved Pin leaves (answers, a base image, a kernel's tree). Only this module of
the agent's runs loads those that build, and the engine's SDK.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from provision.agent.actions import Preparations, failure_of, is_of_no_newer
from provision.agent.desired import setting_fingerprint, settled_version
from provision.agent.model import UNAVAILABLE, KernelArtifact, Observed, Plan, Run
from provision.agent.use import choose, link, refuse_unsuitable, reject
from provision.build.package_store import PackageGoneError
from provision.build.request import DriverRequest
from provision.build.resolve import resolve_pin
from provision.build.workspace import Settings, load_settings
from provision.catalogue.recipe import Known, Recipe
from provision.catalogue.suitability import advice, cards_of
from provision.config import DriverConfig
from provision.distros import compare_versions
from provision.engine.docker_api import EngineLostError
from provision.errors import (
    ExitCode,
    NotFoundError,
    ProvisionError,
)
from provision.host.kernels import kernel_release
from provision.kmod.guest import NotTriedError
from provision.kmod.trial import TrialFailedError, require_loading
from provision.kmod.verify import stored_manifest
from provision.manifest import Manifest, load_manifest
from provision.pin import DriverPin, Pin
from provision.progress import Event, Note, listening, report
from provision.registry.find import ArtifactImage, TrustOverride
from provision.sources.upstream import (
    Notice,
    ended_branch,
    kept,
    known_branches,
    outdated_tables,
    today,
)
from provision.store.availability import look_for
from provision.store.entries import linked_kernels, unlink_kernel
from provision.store.layout import Layout, changing
from provision.store.obtain import Stored, obtain, store_pulled
from provision.store.state import (
    NOT_TRIED,
    Failure,
    KernelState,
    load_state,
    refuse_newer,
    update_state,
)

# How often a lost engine is tried again: an upgrade restarts it within seconds.
_RECONNECTIONS = 30
_RECONNECT_SECONDS = 2.0
# Garbage collection may remove an entry that no link names yet, but not several times by accident.
_ATTEMPTS = 3


def settings_of(run: Run) -> Settings:
    """Return the settings of builds."""
    config = run.desired.config
    return replace(load_settings(run.root, config=config, catalogues=run.catalogues), usr=run.usr)


class Forecast(NamedTuple):
    """Where the artifact of a driver for a kernel would come from."""

    driver: str
    kernel: str
    # ``registry`` if it is pulled, ``build`` if it is built here, ``missing`` if it is not
    # available.
    source: Literal["store", "registry", "build", "missing"]
    version: str | None = None
    # The registry's image, with its digest.
    image: str | None = None
    # What the recipe knows of the version on the kernel, if it is built.
    known: Known | None = None
    # Why it is built or not available.
    reason: str | None = None
    resolution: str | None = None
    # All mistakes of a file, or the last lines of a program.
    details: str | None = None
    # What is known of the version's branch, by whom, and of which day.
    branch: str | None = None
    # That cards of the host are not driven by what provision.toml names, that the vendor no longer
    # supports the version's branch, and which tables of the recipe are old.
    notices: tuple[Notice, ...] = ()
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
    in_use = {"reboot-required", "unserved"}
    blocked = {(b.driver, b.kernel): b for b in planned.blocked if b.obstacle not in in_use}
    found = []
    with settings_of(run).connected() as settings:
        for name in run.desired.drivers:
            for release, artifact in observed.drivers[name].artifacts.items():
                place = (name, release)
                if place in making:
                    one = Prepare(settings, run, name, release, artifact).forecast()
                elif why := blocked.get(place):
                    one = Forecast(
                        *place,
                        "missing",
                        reason=why.reason,
                        resolution=why.resolution,
                        details=why.details,
                    )
                else:
                    one = Forecast(*place, "store", artifact.version)
                found.append(_with_branch(settings, one))
    return tuple(found)


def _with_branch(settings: Settings, found: Forecast) -> Forecast:
    """Return a forecast with what is known of its version's branch, by the vendor's last answer."""
    if found.version is None:
        return found
    try:
        recipe = settings.catalogue.entry(found.driver).recipe
    except NotFoundError:
        # The artifact is in the store, or came from a registry.
        return found
    upstream, machine = recipe.upstream, settings.architecture
    readings = kept(upstream, machine=machine, folder=settings.state)
    branches = known_branches(upstream, readings)
    branch = branches.of(found.version)
    ended = ended_branch(found.driver, found.version, branches, today())
    notices = (_left_out(settings, recipe), ended, *outdated_tables(recipe, today()))
    return found._replace(
        branch=branch.described if branch.maturity is not None else None,
        notices=tuple(filter(None, notices)),
    )


def _left_out(settings: Settings, recipe: Recipe) -> Notice | None:
    setting = settings.config.drivers[recipe.name]
    cards = cards_of(recipe, settings.pci)
    left = [card.wanted for card in cards if not card.takes(setting.flavour, setting.version)]
    if not left:
        return None
    message = f"what provision.toml names does not drive every card of this host: {'; '.join(left)}"
    return Notice(message, advice(recipe, cards))


class _Tried(NamedTuple):
    # The artifact that the kernel takes.
    digest: str | None = None
    # Why there was none.
    failure: Failure | None = None


class Prepare(NamedTuple):
    """The preparation of an artifact, in place of the one that was observed."""

    settings: Settings
    run: Run
    driver: str
    kernel: str
    artifact: KernelArtifact
    # What decides on all inputs of an artifact, and what puts it into the store.
    resolve: Callable[[Settings, DriverRequest], Pin] = resolve_pin
    obtain: Callable[..., Stored] = obtain

    @property
    def _setting(self) -> DriverConfig:
        return self.run.desired.drivers[self.driver]

    @property
    def _layout(self) -> Layout:
        return Layout(self.run.root, self.driver)

    @property
    def _trust(self) -> TrustOverride:
        return TrustOverride(allow_downgrade=self.run.mode.allow_downgrade)

    def prepare(self) -> str:
        """Put the artifact into the store, and point the kernel's link to it; return the result."""
        refuse_newer(self._layout)
        make: Callable[..., Stored]
        found = self._look_for()
        if found is not None:
            pin = found.pin
            make = partial(store_pulled, self.settings, found, self._trust)
        else:
            pin = self.resolve(self.settings, self._request())
            make = partial(self._build, pin)
        if self._keeps(pin):
            update_state(self._layout, lambda state: state.changed(self.kernel, failure=None))
            version = self.artifact.version
            if pin.driver.version == version:
                return f"{version} is the newest"
            return f"{version} stays: the offered version is older ({pin.driver.version})"
        self._refuse(pin, is_pulled=found is not None)
        for _ in range(_ATTEMPTS):
            obtained = make(replace=self._is_damaged(pin))
            result = self._link(obtained, self._try(obtained.entry, obtained.manifest))
            if result is not None:
                return result
        raise ProvisionError(
            f"'{obtained.entry}' is removed again and again while it is installed.",
            resolution="Look for a 'provision gc' that runs repeatedly: pgrep -af 'provision gc'",
        )

    def forecast(self) -> Forecast:
        """Decide on the artifact as ``prepare`` does."""
        try:
            return self._forecast()
        except ProvisionError as error:
            is_unavailable = error.reason in UNAVAILABLE
            code = ExitCode.NOT_FOUND if is_unavailable else ExitCode.FAILED
            stays = is_of_no_newer(self.run.mode, self.artifact, error.reason)
            return Forecast(
                self.driver,
                self.kernel,
                "missing",
                reason=error.message,
                resolution=error.resolution,
                details=error.details,
                exit_code=ExitCode.DONE if stays else code,
            )

    def _forecast(self) -> Forecast:
        place = (self.driver, self.kernel)
        notes: list[str] = []

        def note(event: Event) -> None:
            if isinstance(event, Note):
                notes.append(event.text)

        with listening(note):
            found = self._look_for()
            is_asked = self.settings.config.asks_registries
            reasons = ["; ".join(notes) or "no registry has it"] if is_asked else []
            notes.clear()
            # Only what decides on all inputs shows that they are there.
            pin = found.pin if found else self.resolve(self.settings, self._request())
            if self._keeps(pin):
                reason = "there is no newer one"
                return Forecast(*place, "store", self.artifact.version, reason=reason)
            self._refuse(pin, is_pulled=found is not None)
        version = pin.driver.version
        of_choice = f"{self.driver} {version}: "
        chosen = [text.removeprefix(of_choice) for text in notes if text.startswith(of_choice)]
        if self._layout.entry(pin.short_digest).is_dir() and not self._is_damaged(pin):
            return Forecast(*place, "store", version, reason="; ".join(chosen) or None)
        if found is not None:
            image = str(found.reference)
            return Forecast(*place, "registry", version, image, reason="; ".join(chosen) or None)
        # Without an engine, nothing is built.
        self.settings.engine()
        recipe = self.settings.catalogue.entry(self.driver).recipe
        known = recipe.standing(
            version=version, flavour=pin.driver.flavour, kernel_release=self.kernel
        ).known
        why = "; ".join([*reasons, *chosen]) or None
        return Forecast(*place, "build", version, reason=why, known=known)

    def _look_for(self) -> ArtifactImage | None:
        return look_for(self.settings, self._request(), self._trust)

    def _request(self, *, refresh: bool = False) -> DriverRequest:
        setting, run = self._setting, self.run
        settled = settled_version(run.root, self.driver, setting, self.kernel)
        # A retry is for what was rolled back, and not for what it was rolled back to.
        is_settled = not (run.mode.retries(self.kernel) and self.artifact.known.rejected)
        is_settled = is_settled and not run.mode.update
        if self._avoided_here and not run.mode.retries(self.kernel):
            # What this host went back from is no better under its next kernel.
            used = linked_kernels(self._layout).get(kernel_release(run.root) or "")
            manifest = stored_manifest(self._layout.entry(used)) if used else None
            is_settled, settled = True, manifest.pin.driver.version if manifest else settled
        return DriverRequest(
            driver=self.driver,
            kernel=self.kernel,
            version=setting.version,
            flavour=setting.flavour,
            prefer=settled if is_settled else None,
            refresh=refresh,
        )

    @property
    def _avoided_here(self) -> list[DriverPin]:
        """What the running kernel went back from, if it is another."""
        running = kernel_release(self.run.root)
        if running is None or running == self.kernel:
            return []
        avoided = load_state(self._layout).of(running).avoided
        read = (stored_manifest(self._layout.entry(digest)) for digest in avoided)
        return [manifest.pin.driver for manifest in read if manifest is not None]

    def _is_damaged(self, pin: Pin) -> bool:
        return not self.artifact.is_whole and self.artifact.digest == pin.short_digest

    def _keeps(self, pin: Pin) -> bool:
        artifact = self.artifact
        if not (self.run.mode.update and artifact.is_current) or artifact.version is None:
            return False
        return compare_versions(pin.driver.version, artifact.version) <= 0

    def _refuse(self, pin: Pin, *, is_pulled: bool) -> None:
        refuse_unsuitable(self.run.root, self.run.desired, pin)
        # The serial of a registry's image only orders signatures: an old version may be signed
        # again.
        known = load_state(self._layout).of(self.kernel)
        if (
            not (is_pulled and self.run.mode.allow_downgrade)
            and known.wanted == setting_fingerprint(self.driver, self._setting)
            and self.artifact.is_whole
            and (version := self.artifact.version) is not None
            and compare_versions(pin.driver.version, version) < 0
        ):
            name = self.driver
            raise ProvisionError(
                f"{name} {version} for {self.kernel} would be replaced by {pin.driver.version},"
                f" which is older: {version} is no longer offered, is known to fail on this kernel,"
                " or does not drive every card of this host.",
                resolution="To go back on purpose, set the version in"
                f" /etc/provision/provision.toml: [drivers.{name}] version ="
                f' "{pin.driver.version}".',
            )
        self._refuse_rejected(pin)

    def _refuse_rejected(self, pin: Pin) -> None:
        if self.run.mode.retries(self.kernel):
            return
        if pin.driver in self._avoided_here:
            # Only until the running kernel takes it after all, or this one runs.
            version, name = pin.driver.version, self.driver
            raise ProvisionError(
                f"{name} {version} is not made for {self.kernel}: this host went back from it.",
                resolution="Set another version in provision.toml, or accept this one: provision"
                " apply --retry",
            )
        if pin.short_digest in self.artifact.known.rejected:
            raise ProvisionError(
                f"The artifact of {self.driver} for {self.kernel} would again be"
                f" {pin.short_digest}, which was rolled back from.",
                resolution="Set another version in provision.toml, or accept this artifact:"
                " provision apply --retry",
                reason="rejected",
            )

    def _build(self, pin: Pin, *, replace: bool) -> Stored:
        """Put the artifact into the store; solve again for packages that the mirror has removed."""
        try:
            return self._obtain(pin, replace=replace)
        except PackageGoneError as gone:
            if gone.sha256 not in {package.sha256 for package in pin.closure}:
                # The driver's own source is gone.
                raise
            report(Note(f"{gone.message} Solving the closure of packages again"))
        pin = self.resolve(self.settings, self._request(refresh=True))
        self._refuse_rejected(pin)
        return self._obtain(pin, replace=replace)

    def _obtain(self, pin: Pin, *, replace: bool) -> Stored:
        settings = self.settings
        making = partial(self.obtain, settings, pin, replace=replace)
        try:
            return making()
        except EngineLostError as lost:
            report(Note(f"{lost.message} Waiting for the engine"))
            for _ in range(_RECONNECTIONS):
                settings.connection.close()
                time.sleep(_RECONNECT_SECONDS)
                try:
                    settings.engine().image("none")
                except ProvisionError:
                    continue
                return making()
            raise

    def _try(self, entry: Path, manifest: Manifest) -> _Tried:
        """Load the modules in the kernel that may boot next, before the host uses them.

        Raises:
            TrialFailedError: That kernel does not take them; the host keeps what it has.
        """
        if self.artifact.tried_by is None:
            return _Tried()
        name = f"{self.driver} {manifest.pin.driver.version}"
        try:
            trial = require_loading(self.settings, entry, manifest, what=name)
        except TrialFailedError as error:
            self._give_up(entry.name, error)
            raise
        except NotTriedError as error:
            report(Note(f"{name} is used without a trial: {error.message}"))
            before = self.artifact.known.untried
            failure = failure_of(error, self.artifact.tried_by, before=before)
            return _Tried(failure=failure.model_copy(update={"reason": NOT_TRIED}))
        report(Note(f"{trial.kernel} takes {name}, by a trial of {trial.seconds} s"))
        for untried in trial.untried:
            report(Note(untried))
        return _Tried(entry.name)

    def try_stored(self) -> str:
        """Try the artifact that the kernel uses, as ``Preparation`` says."""
        layout, kernel = self._layout, self.kernel
        entry = layout.entry(self.artifact.digest or "")
        tried = self._try(entry, load_manifest(entry))
        changes = {"tried": tried.digest, "untried": tried.failure}
        update_state(layout, lambda state: state.changed(kernel, **changes))
        return f"{kernel} takes it" if tried.digest else "it could not be tried"

    def _give_up(self, digest: str, error: TrialFailedError) -> None:
        """Have the kernel use the artifact before, if there is one, or none, if it used this."""
        layout, kernel, inputs = self._layout, self.kernel, self.artifact.inputs
        with changing(layout):
            if linked_kernels(layout).get(kernel) != digest:
                return
            try:
                _now, before = choose(layout, kernel, self.run.desired.config)
            except NotFoundError:
                unlink_kernel(layout, kernel)
            else:
                failure = failure_of(error, inputs, before=None)
                reject(layout, kernel, before, inputs=inputs, failure=failure)

    def _link(self, obtained: Stored, tried: _Tried) -> str | None:
        """Point the kernel's link to the artifact, unless the driver was rolled back meanwhile.

        Returns:
            The result in one line; None: the artifact is gone again.
        """
        layout, kernel, digest = self._layout, self.kernel, obtained.entry.name
        with changing(layout):
            manifest = stored_manifest(obtained.entry)
            if manifest is None:
                return None
            if set(load_state(layout).of(kernel).rejected) - set(self.artifact.known.rejected):
                return (
                    f"{digest} is in the store and not in use: the driver was rolled back meanwhile"
                )
            link(
                layout,
                self.run.desired,
                kernel,
                obtained.entry,
                manifest,
                inputs=self.artifact.inputs,
                made=partial(self._made, obtained, tried),
            )
        version = obtained.manifest.pin.driver.version
        return f"{version} is in the store (from: {obtained.origin})"

    def _made(self, obtained: Stored, tried: _Tried, known: KernelState) -> dict[str, object]:
        is_same = self.artifact.known.inputs == self.artifact.inputs
        is_extra = self.kernel in self.run.mode.extra_kernels
        has_not_loaded = known.failure is not None and known.failure.reason == "load"
        changes: dict[str, object] = {
            "seconds": {name: round(taken, 3) for name, taken in obtained.seconds.items()},
            # Until it is loaded, it counts how often that failed.
            "load_failure": known.failure if has_not_loaded else None,
            "tried": tried.digest,
            "untried": tried.failure,
        }
        if not is_same or self.run.mode.retries(self.kernel):
            changes["rejected"] = ()
        if is_extra:
            changes["announced"] = kernel_release(self.run.root) or ""
        return changes


def preparations(run: Run, held: ExitStack) -> Preparations:
    """Return the preparations of one run: given what is observed of an artifact, its own.

    The connection to the engine, where one is opened, is closed with ``held``.
    """
    settings = held.enter_context(settings_of(run).connected())
    return partial(Prepare, settings, run)
