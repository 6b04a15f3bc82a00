"""Desired and observed state, the plan that brings a host from one to the other, outcomes. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from provision.catalogue.suitability import Card
from provision.config import Config, DriverConfig
from provision.documents import Frozen, default
from provision.errors import ProvisionError
from provision.host.boot import IF_IT_COMES_BACK
from provision.host.kernels import Kernels
from provision.store.foreign import OtherInstallation
from provision.store.state import Failure, KernelState

# Whether the modules of the running kernel's artifact are loaded: all, none or some of them, or
# modules of the same names from another build.
Loaded = Literal["yes", "no", "partly", "other"]
# Reasons of a failure: what is needed is not there. "no-artifact": the registry lacks it, and this
# host does not build. "no-card": what there is drives no card of the host.
UNAVAILABLE = frozenset({"missing", "no-artifact", "no-card"})


class Desired(NamedTuple):
    """What a host should have, as its provision.toml says."""

    config: Config = default(Config)
    # Whether provision.toml has content; without, no driver is taken out of use, because a crash or
    # an editor may have emptied it.
    is_configured: bool = True
    # A driver in a later folder masks one in an earlier one.
    catalogue: tuple[Path, ...] = ()

    @property
    def drivers(self) -> Mapping[str, DriverConfig]:
        """The drivers by name."""
        return self.config.drivers


class KernelArtifact(NamedTuple):
    """The artifact of a driver for one kernel, in the store and in the agent's state."""

    # Fingerprint of the inputs that would decide its artifact now.
    inputs: str
    # What the agent remembers of it.
    known: KernelState = default(KernelState)
    # Short digest of the artifact that the kernel uses; None: it has none.
    digest: str | None = None
    # Whether that artifact is in the store and undamaged.
    is_whole: bool = False
    damage: str | None = None
    # Fingerprint of its files' sizes and times, if it is whole.
    fingerprint: str | None = None
    version: str | None = None
    # The image of a registry that it came from, if that image is not signed.
    unsigned: str | None = None
    # Why the host would not admit it to the store today; None: it would.
    distrust: str | None = None
    # Whether a retry is too early, or makes no sense.
    in_backoff: bool = False
    # Whether it was made for the present setting of provision.toml.
    is_wanted: bool = False
    # What tries it: the path of a QEMU, which may be missing; None: the policy has nothing tried.
    tried_by: str | None = None
    # Whether another attempt at a trial is too early.
    trial_waits: bool = False
    # Whether the kernel was not on this host when it was made, and now is.
    has_come: bool = False

    @property
    def keeps_old(self) -> bool:
        """Whether a whole artifact stays because what would replace it is not available.

        provision.toml asks for the same as before, and only the surroundings have changed: the
        distro's repositories no longer have the kernel's headers, for example.
        """
        failure = self.known.failure
        return failure is not None and failure.reason in UNAVAILABLE and self._outlasts(failure)

    @property
    def is_ready_at_boot(self) -> bool:
        """Whether a boot of the kernel has the driver, for all that is known.

        Nothing that decides on the artifact has changed since it was made, unless what would
        replace it is not available, or has failed here.
        """
        failure = self.known.failure
        if failure is None or self.known.refused is None:
            return self.is_current or self.keeps_old
        return self._outlasts(failure)

    def _outlasts(self, failure: Failure) -> bool:
        is_same = failure.inputs == self.inputs and self.is_wanted
        return is_same and self.is_whole and self.distrust is None

    @property
    def is_untried(self) -> bool:
        """Whether a trial is wanted that has not been made."""
        return self.tried_by is not None and self.is_whole and self.known.tried != self.digest

    @property
    def is_current(self) -> bool:
        """Whether the artifact is whole, trusted, and was made from the present inputs."""
        return self.is_whole and self.known.inputs == self.inputs and self.distrust is None


class ObservedDriver(NamedTuple):
    """The observed state of a driver."""

    name: str
    artifacts: Mapping[str, KernelArtifact]
    # Short digest of the active artifact; None: no artifact is active.
    current: str | None = None
    # Whether its activation is complete and its files on the host are in place.
    is_active: bool = False
    # Those that are missing or were emptied.
    lost: tuple[str, ...] = ()
    # Whether the modules of the running kernel's artifact are loaded.
    loaded: Loaded = "no"
    # Whether the active artifact works: its modules are loaded, if a kernel runs there.
    serves: bool = False
    users: tuple[str, ...] = ()
    # Unreadable state and problems with its devices, for people.
    notes: tuple[str, ...] = ()
    # Cards that it is for, and to which none of its loaded modules is bound.
    unserved: tuple[Card, ...] = ()
    # Cards that its active artifact does not drive, by its own list.
    undriven: tuple[Card, ...] = ()
    # Whether the active artifact has a check that has not passed since the boot.
    is_unchecked: bool = False
    # Whether it is for cards, of which the host has none.
    lacks_card: bool = False
    # What the host has of it that provision did not install; None: nothing.
    other: OtherInstallation | None = None
    # Why the catalogue has no such driver; None: it has.
    unknown: ProvisionError | None = None


class Held(Frozen):
    """What was set in the boot loader, and what was there before."""

    # The default now, and the kernel that would boot otherwise.
    kernel: str
    instead_of: str
    # The boot loader's name of its entry.
    entry: str
    before: str | None
    ours: str
    # Another setting, beside which this was made.
    beside: str
    # Whether it is set; else a run was killed at it.
    is_set: bool = False


class Hold(Frozen):
    """Whether the boot loader's default is held, as the last run left it."""

    held: Held | None = None
    # Someone has set another default than ours, so this kernel is not held back again.
    left: str | None = None
    # Why nothing could be set.
    problem: str | None = None


class Unnamed(NamedTuple):
    """An artifact that a kernel uses, of a driver that provision.toml does not name."""

    driver: str
    # Release of the kernel.
    kernel: str
    digest: str
    # None: the artifact is missing in the store.
    version: str | None


class Observed(NamedTuple):
    """The observed state of a host."""

    kernels: Kernels
    # Whether its kernel runs here, so that modules can be loaded.
    is_live: bool
    # The desired drivers, and those that an apply has installed, by name.
    drivers: Mapping[str, ObservedDriver]
    # Whether its boot loader's default is held.
    hold: Hold = default(Hold)
    # What 'provision install' put there, or a driver on its way out.
    unnamed: tuple[Unnamed, ...] = ()


Kind = Literal["prepare", "try", "unload", "activate", "load", "check", "retire"]
Obstacle = Literal["failed", "missing", "rejected", "reboot-required", "unserved"]
# Kind, driver and kernel: they identify an action within a plan.
Key = tuple[str, str, str]

_WORDS: dict[Kind, str] = {
    "prepare": "make the artifact of {driver} for {kernel}",
    "try": "try the modules of {driver} in {kernel}",
    "unload": "unload the modules of {driver}",
    "activate": "switch to the artifact of {driver} for {kernel}",
    "load": "load the modules of {driver}",
    "check": "check that {driver} works",
    "retire": "take {driver} out of use",
}


class Action(NamedTuple):
    """One action of a plan."""

    # ``prepare`` an artifact (find, pull or build it, and put it into the store), ``try`` it in a
    # virtual machine, ``unload`` modules, ``activate`` the artifact (user space and vendor file),
    # ``load`` modules, ``check`` that it works, ``retire`` a driver (remove its links and vendor
    # file).
    kind: Kind
    driver: str
    # The kernel; the running one if the action concerns no certain kernel.
    kernel: str
    reason: str

    @property
    def key(self) -> Key:
        """The action's identity within a plan."""
        return (self.kind, self.driver, self.kernel)

    def __str__(self) -> str:
        text = _WORDS[self.kind].format(driver=self.driver, kernel=self.kernel)
        return f"{text}: {self.reason}"


class Blocked(NamedTuple):
    """An action that is needed but not possible now."""

    driver: str
    kernel: str
    obstacle: Obstacle
    reason: str
    resolution: str | None = None
    details: str | None = None


class Mode(NamedTuple):
    """The mode of a run."""

    # Whether artifacts may be made; not at boot, where there may be no network.
    may_prepare: bool = True
    retry: bool = False
    # Kernels that may boot next, besides those that the host names: their artifacts are made,
    # whatever the policy says, and retried.
    extra_kernels: tuple[str, ...] = ()
    # Whether versions that are not fixed may move forward.
    update: bool = False
    allow_downgrade: bool = False
    # The driver that the run concerns; None: all.
    only: str | None = None

    def retries(self, release: str) -> bool:
        """Return whether what failed for a kernel, or was rolled back there, is tried again."""
        return self.retry or release in self.extra_kernels


class Plan(NamedTuple):
    """Actions in their order, and blocked ones; both are empty if the host is as desired."""

    actions: tuple[Action, ...] = ()
    blocked: tuple[Blocked, ...] = ()


class Run(NamedTuple):
    """The context of a run."""

    root: Path
    desired: Desired
    mode: Mode = Mode()
    catalogues: Sequence[Path] = ()
    # Mount point of a /usr that boots next.
    usr: Path | None = None


class Outcome(NamedTuple):
    """The outcome of an action."""

    action: Action
    result: str
    seconds: float
    # Its error; None: it succeeded.
    error: ProvisionError | None = None
    # The error, as the state records it.
    failure: Failure | None = None


Step = Action | Blocked
# The order of actions: existing artifacts, builds for the running kernel, builds for the next ones.
_FIRST, _SECOND, _THIRD = range(3)


def plan(
    desired: Desired,
    observed: Observed,
    mode: Mode | None = None,
    *,
    tried: frozenset[Key] = frozenset(),
) -> Plan:
    """Return the plan for a host.

    Existing artifacts come first, then builds for the running kernel, then builds for kernels that
    may boot next: no driver waits for the build of another.
    """
    mode = mode or Mode()
    running = observed.kernels.running
    steps: list[tuple[int, Step]] = []
    for name in desired.drivers if mode.only is None else [mode.only]:
        for release in observed.kernels.relevant:
            is_named = release == running or release in mode.extra_kernels
            if not is_named and not desired.config.policy.prebuild:
                steps += _not_before_it_runs(observed, name, release)
            elif release == running or mode.may_prepare:
                steps += _for_kernel(desired, observed, name, release, mode, tried)
    if desired.is_configured and mode.may_prepare and mode.only is None:
        for name in sorted(observed.drivers.keys() - desired.drivers.keys()):
            retiring = _retire(desired, observed, observed.drivers[name])
            steps += [(_FIRST, step) for step in retiring]
    actions = [s for _, s in sorted(steps, key=lambda x: x[0]) if isinstance(s, Action)]
    return Plan(
        tuple(action for action in actions if action.key not in tried),
        tuple(step for _, step in steps if isinstance(step, Blocked)),
    )


def _not_before_it_runs(observed: Observed, name: str, release: str) -> Iterator[tuple[int, Step]]:
    if not observed.drivers[name].artifacts[release].is_current:
        reason = "artifacts are not made for kernels that do not run yet"
        resolution = "Set [policy] prebuild = true in /etc/provision/provision.toml."
        yield _THIRD, Blocked(name, release, "missing", reason, resolution)


def _for_kernel(
    desired: Desired,
    observed: Observed,
    name: str,
    release: str,
    mode: Mode,
    tried: frozenset[Key],
) -> Iterator[tuple[int, Step]]:
    driver = observed.drivers[name]
    artifact = driver.artifacts[release]
    is_running = release == observed.kernels.running
    step = _prepare(name, desired.drivers[name].version, release, artifact, mode)
    if isinstance(step, Action) and step.key in tried:
        step = None
    if step is not None:
        yield (_SECOND if is_running else _THIRD), step
    elif artifact.is_untried and (mode.retries(release) or not artifact.trial_waits):
        yield _THIRD, Action("try", name, release, "it was not tried")
    if is_running:
        # An attempt that failed before is repeated, and costs nothing that works.
        prepares = isinstance(step, Action) and not artifact.keeps_old
        serves = list(_serve(desired, observed, driver, artifact, prepares=prepares))
        for serving in serves:
            yield (_SECOND if prepares else _FIRST), serving
        if driver.unserved and not prepares and not serves:
            yield _FIRST, _unserved(driver, release)


def _unserved(driver: ObservedDriver, release: str) -> Blocked:
    names = ", ".join(card.name for card in driver.unserved)
    reason = f"its modules are loaded, and none of them drives {names}"
    others = f"Another version or flavour may serve it: provision drivers versions {driver.name}"
    resolution = f"See why in the kernel's log: 'provision doctor' and dmesg. {others}"
    if driver.undriven:
        listed = ", ".join(card.device.address for card in driver.undriven)
        reason += f"; the driver's own list of cards lacks {listed}"
        takes = "; ".join(card.wanted for card in driver.undriven)
        resolution = f"{others}. {takes}"
    return Blocked(driver.name, release, "unserved", reason, resolution)


def _prepare(
    name: str, version: str, release: str, artifact: KernelArtifact, mode: Mode
) -> Step | None:
    failure = artifact.known.failure
    if failure is not None and failure.reason == "state":
        # What a newer provision decided stays, whatever is needed or asked for.
        return Blocked(name, release, "failed", failure.message, failure.resolution)
    reason = _need(version, release, artifact, mode)
    if reason is None:
        return None
    # What was gone back from says nothing about a still newer one.
    may_be_newer = mode.update and artifact.is_current and failure is not None and failure.final
    holds = failure is not None and artifact.in_backoff and not mode.retries(release)
    if failure is not None and holds and not may_be_newer:
        obstacle: Obstacle = "rejected" if failure.reason == "rejected" else "failed"
        told = failure.message, failure.resolution, failure.details
        return Blocked(name, release, obstacle, *told)
    if not mode.may_prepare:
        resolution = "Make it when the network is up: provision apply"
        return Blocked(name, release, "missing", reason, resolution)
    return Action("prepare", name, release, reason)


def _need(version: str, release: str, artifact: KernelArtifact, mode: Mode) -> str | None:
    """Return why an artifact has to be made; None if it need not be."""
    if artifact.digest is None:
        return "it does not exist yet"
    if not artifact.is_whole:
        return artifact.damage or "it is missing in the store"
    # The existing artifact works; a later run makes a newer one.
    return _why_again(version, release, artifact, mode) if mode.may_prepare else None


def _why_again(version: str, release: str, artifact: KernelArtifact, mode: Mode) -> str | None:
    """Return why a whole artifact has to be made again; None if it stays."""
    if artifact.distrust is not None:
        return f"it is not trusted now: {artifact.distrust}"
    if mode.retries(release) and (artifact.known.rejected or artifact.known.failure is not None):
        return "a retry was requested"
    if artifact.known.inputs != artifact.inputs:
        return "its inputs have changed" if artifact.known.inputs else "its inputs are not known"
    # A version that is named in full can't move.
    may_move = mode.update and artifact.version != version
    return "there may be a newer version" if may_move else None


def _serve(
    desired: Desired,
    observed: Observed,
    driver: ObservedDriver,
    artifact: KernelArtifact,
    *,
    prepares: bool,
) -> Iterator[Step]:
    """Yield the steps that activate and load the running kernel's artifact, after it is made."""
    release = observed.kernels.running or ""
    if not artifact.is_whole and not prepares:
        return
    reason = "its artifact is new" if prepares else _difference(observed, driver, artifact)
    if reason is None:
        if driver.is_unchecked:
            yield Action("check", driver.name, release, "it was not checked since the boot")
        return
    is_loaded = observed.is_live and driver.loaded != "no"
    has_others = is_loaded and (prepares or driver.loaded == "other")
    if has_others:
        if hindrance := _hindrance(desired, driver, "another build is loaded"):
            resolution = (
                f"Stop its users and run 'provision apply' again, or reboot. {IF_IT_COMES_BACK}"
            )
            yield Blocked(driver.name, release, "reboot-required", hindrance, resolution)
            return
        yield Action("unload", driver.name, release, "another build of them is loaded")
    if prepares or driver.current != artifact.digest or not driver.is_active:
        yield Action("activate", driver.name, release, reason)
    if observed.is_live and (has_others or driver.loaded != "yes"):
        yield Action("load", driver.name, release, reason)


def _retire(desired: Desired, observed: Observed, driver: ObservedDriver) -> Iterator[Step]:
    release = observed.kernels.running or ""
    reason = "provision.toml no longer names it"
    if observed.is_live and driver.loaded != "no":
        if hindrance := _hindrance(desired, driver, "it is still loaded"):
            resolution = "Stop its users and run 'provision apply' again, or reboot."
            yield Blocked(driver.name, release, "reboot-required", hindrance, resolution)
            return
        yield Action("unload", driver.name, release, reason)
    yield Action("retire", driver.name, release, reason)


def _difference(observed: Observed, driver: ObservedDriver, artifact: KernelArtifact) -> str | None:
    if driver.current != artifact.digest:
        return "another artifact is in use" if driver.current else "no artifact is in use"
    if not driver.is_active:
        lost = ", ".join(driver.lost)
        return f"missing or empty: {lost}" if lost else "its activation was not completed"
    if not observed.is_live:
        return None
    return {
        "yes": None,
        "no": "its modules are not loaded",
        "partly": "some of its modules are not loaded",
        "other": "another build of its modules is loaded",
    }[driver.loaded]


def _hindrance(desired: Desired, driver: ObservedDriver, what: str) -> str | None:
    if desired.config.policy.unload == "never":
        return f"{what}, and [policy] unload leaves that to a reboot"
    return f"{what} and in use: {'; '.join(driver.users)}" if driver.users else None
