"""Plans what brings a host from its observed to its desired state, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from provision.agent.model import Desired, DesiredDriver, KernelArtifact, Observed, ObservedDriver

Kind = Literal["prepare", "unload", "activate", "load", "retire"]
Obstacle = Literal["failed", "missing", "rejected", "reboot-required"]
# Kind, driver and kernel: they identify an action within a plan.
Key = tuple[str, str, str]

_WORDS: dict[Kind, str] = {
    "prepare": "make the artifact of {driver} for {kernel}",
    "unload": "unload the modules of {driver}",
    "activate": "switch to the artifact of {driver} for {kernel}",
    "load": "load the modules of {driver}",
    "retire": "take {driver} out of use",
}


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do.

    Attributes:
        kind: ``prepare`` an artifact (find, pull or build it, and put it into the store),
            ``unload`` modules, ``activate`` the artifact (user space and vendor config), ``load``
            modules, ``retire`` a driver (its links and vendor config go).
        driver: Of which driver.
        kernel: For which kernel; the running one where it is not about any.
        reason: Why.
    """

    kind: Kind
    driver: str
    kernel: str
    reason: str

    @property
    def key(self) -> Key:
        """What identifies it within a plan."""
        return (self.kind, self.driver, self.kernel)

    def __str__(self) -> str:
        text = _WORDS[self.kind].format(driver=self.driver, kernel=self.kernel)
        return f"{text}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Blocked:
    """Something that should be done and can't be done now.

    Attributes:
        driver: Of which driver.
        kernel: For which kernel.
        obstacle: What is in the way.
        reason: The same, for people.
        resolution: What to do.
    """

    driver: str
    kernel: str
    obstacle: Obstacle
    reason: str
    resolution: str | None = None


Step = Action | Blocked
# When an action's turn comes: what serves now, the running kernel's builds, the next kernels'.
_FIRST, _SECOND, _THIRD = range(3)


@dataclass(frozen=True, slots=True)
class Mode:
    """How to go about it.

    Attributes:
        may_prepare: Whether artifacts may be made; not at boot, where there may be no network.
        retry: Whether to try again what failed or was rejected.
        update: Whether versions that are not fixed may move forward.
        allow_downgrade: Whether an artifact of a registry may be older than the one before it.
    """

    may_prepare: bool = True
    retry: bool = False
    update: bool = False
    allow_downgrade: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in their order, and what can't be done; both are empty if the host is as desired."""

    actions: tuple[Action, ...] = ()
    blocked: tuple[Blocked, ...] = ()


def plan(
    desired: Desired,
    observed: Observed,
    mode: Mode | None = None,
    *,
    tried: frozenset[Key] = frozenset(),
) -> Plan:
    """Return what has to be done.

    What serves now comes first, then what is missing for the running kernel, then the kernels
    that may boot next: nothing waits for someone else's build.

    Args:
        desired: What the host should have.
        observed: What it has.
        mode: How to go about it.
        tried: What this run did already, with or without success: it is not done again.
    """
    mode = mode or Mode()
    steps: list[tuple[int, Step]] = []
    for driver in desired.drivers:
        for release in observed.kernels.relevant:
            if release != observed.kernels.running and not (desired.prebuild and mode.may_prepare):
                continue
            artifact = observed.drivers[driver.name].artifacts[release]
            step = _prepare(driver, release, artifact, mode)
            if isinstance(step, Action) and step.key in tried:
                step = None
            steps += _for_kernel(desired, observed, driver, release, step)
    strays = sorted(observed.drivers.keys() - {driver.name for driver in desired.drivers})
    if desired.is_configured and mode.may_prepare:
        for name in strays:
            steps += [
                (_FIRST, step) for step in _deactivate(desired, observed, observed.drivers[name])
            ]
    actions = [s for _, s in sorted(steps, key=lambda x: x[0]) if isinstance(s, Action)]
    return Plan(
        tuple(action for action in actions if action.key not in tried),
        tuple(step for _, step in steps if isinstance(step, Blocked)),
    )


def _for_kernel(
    desired: Desired,
    observed: Observed,
    driver: DesiredDriver,
    release: str,
    step: Step | None,
) -> Iterator[tuple[int, Step]]:
    """Yield what a driver needs for a kernel, with when its turn comes.

    ``step`` makes its artifact; None: it is there, or was tried.
    """
    there = observed.drivers[driver.name]
    is_running = release == observed.kernels.running
    prepares = isinstance(step, Action)
    if step is not None:
        yield (_SECOND if is_running else _THIRD), step
    if is_running:
        for serving in _serve(desired, observed, there, prepares=prepares):
            yield (_SECOND if prepares else _FIRST), serving


def _prepare(
    driver: DesiredDriver, release: str, artifact: KernelArtifact, mode: Mode
) -> Step | None:
    """Return the step that makes the artifact for a kernel; None if it is there."""
    reason = _need(driver, artifact, mode)
    if reason is None:
        return None
    failure = artifact.known.failure
    # Trying again does not overrule what a newer provision has decided.
    may_retry = mode.retry and failure is not None and failure.reason != "state"
    if failure is not None and artifact.holds_off and not may_retry:
        obstacle: Obstacle = "rejected" if failure.reason == "rejected" else "failed"
        return Blocked(driver.name, release, obstacle, failure.message, failure.resolution)
    if not mode.may_prepare:
        return Blocked(
            driver.name,
            release,
            "missing",
            reason,
            "It is made when the network is there: provision apply.",
        )
    return Action("prepare", driver.name, release, reason)


def _need(driver: DesiredDriver, artifact: KernelArtifact, mode: Mode) -> str | None:
    """Return why an artifact has to be made; None if it does not."""
    if artifact.digest is None:
        return "it does not exist yet"
    if not artifact.is_whole:
        return artifact.damage or "it is missing in the store"
    if not mode.may_prepare:
        # What is there serves; a newer one is a later run's business.
        return None
    if mode.retry and (artifact.known.rejected or artifact.known.failure is not None):
        return "it is to be tried again"
    if artifact.known.inputs != artifact.inputs:
        return (
            "what it is made from has changed"
            if artifact.known.inputs
            else "its origin is not known"
        )
    return "there may be a newer version" if mode.update and _may_move(driver, artifact) else None


def _may_move(driver: DesiredDriver, artifact: KernelArtifact) -> bool:
    """Whether another version may be what is asked for some day."""
    return artifact.version != driver.version


def _serve(
    desired: Desired, observed: Observed, driver: ObservedDriver, *, prepares: bool
) -> Iterator[Step]:
    """Yield the steps that put the running kernel's artifact to use, which may be made before."""
    release = observed.kernels.running or ""
    artifact = driver.artifacts[release]
    if not artifact.is_whole and not prepares:
        return
    reason = "its artifact is a new one" if prepares else _difference(observed, driver, artifact)
    if reason is None:
        return
    is_loaded = observed.is_live and driver.loaded != "no"
    has_others = is_loaded and (prepares or driver.loaded == "other")
    if has_others:
        if hindrance := _hindrance(desired, driver, "another build is loaded"):
            yield Blocked(
                driver.name,
                release,
                "reboot-required",
                hindrance,
                "Stop what uses it and run 'provision apply' again, or reboot.",
            )
            return
        yield Action("unload", driver.name, release, "another build of them is loaded")
    if prepares or driver.current != artifact.digest or not driver.is_active:
        yield Action("activate", driver.name, release, reason)
    if observed.is_live and (has_others or driver.loaded != "yes"):
        yield Action("load", driver.name, release, reason)


def _deactivate(desired: Desired, observed: Observed, driver: ObservedDriver) -> Iterator[Step]:
    """Yield the steps that remove a driver which provision.toml no longer names."""
    release = observed.kernels.running or ""
    reason = "provision.toml does not name it any more"
    if observed.is_live and driver.loaded != "no":
        if hindrance := _hindrance(desired, driver, "it is still loaded"):
            resolution = "Stop what uses it and run 'provision apply' again, or reboot."
            yield Blocked(driver.name, release, "reboot-required", hindrance, resolution)
            return
        yield Action("unload", driver.name, release, reason)
    yield Action("retire", driver.name, release, reason)


def _difference(observed: Observed, driver: ObservedDriver, artifact: KernelArtifact) -> str | None:
    """Return why an artifact that is there is not in use; None if it is."""
    if driver.current != artifact.digest:
        return "another artifact is in use" if driver.current else "no artifact is in use"
    if not driver.is_active:
        return "its vendor config is missing"
    if observed.is_live and driver.loaded != "yes":
        return {
            "no": "they are not loaded",
            "partly": "some of them are not loaded",
            "other": "another build of them is loaded",
        }[driver.loaded]
    return None


def _hindrance(desired: Desired, driver: ObservedDriver, what: str) -> str | None:
    """Return why loaded modules can't be unloaded; None if they can."""
    if desired.unload == "never":
        return f"{what}, and the policy is to leave that to a reboot"
    return f"{what} and in use: {'; '.join(driver.users)}" if driver.users else None
