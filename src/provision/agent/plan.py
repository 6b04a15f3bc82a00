"""Plans the actions that bring a host from its observed to its desired state. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from provision.agent.model import (
    Action,
    Blocked,
    Desired,
    KernelArtifact,
    Key,
    Mode,
    Observed,
    ObservedDriver,
    Obstacle,
    Plan,
)
from provision.host.initramfs import IF_IT_COMES_BACK

Step = Action | Blocked
# The order of actions: existing artifacts, builds for the running kernel, builds for the next ones.
_FIRST, _SECOND, _THIRD = range(3)


def plan(
    desired: Desired,
    observed: Observed,
    mode: Mode | None = None,
    *,
    tried: frozenset[Key] = frozenset(),
    only: str | None = None,
) -> Plan:
    """Return the plan for a host.

    Existing artifacts come first, then builds for the running kernel, then builds for kernels that
    may boot next: no driver waits for the build of another.
    """
    mode = mode or Mode()
    config, running = desired.config, observed.kernels.running
    steps: list[tuple[int, Step]] = []
    for name in desired.drivers if only is None else [only]:
        for release in observed.kernels.relevant:
            if release == running or (config.policy.prebuild and mode.may_prepare):
                steps += _for_kernel(desired, observed, name, release, mode, tried)
    if desired.is_configured and mode.may_prepare and only is None:
        for name in sorted(observed.drivers.keys() - desired.drivers.keys()):
            retiring = _retire(desired, observed, observed.drivers[name])
            steps += [(_FIRST, step) for step in retiring]
    actions = [s for _, s in sorted(steps, key=lambda x: x[0]) if isinstance(s, Action)]
    return Plan(
        tuple(action for action in actions if action.key not in tried),
        tuple(step for _, step in steps if isinstance(step, Blocked)),
    )


def _for_kernel(
    desired: Desired,
    observed: Observed,
    name: str,
    release: str,
    mode: Mode,
    tried: frozenset[Key],
) -> Iterator[tuple[int, Step]]:
    """Yield the steps of a driver for a kernel, each with its place in the order."""
    driver = observed.drivers[name]
    artifact = driver.artifacts[release]
    is_running = release == observed.kernels.running
    step = _prepare(name, desired.drivers[name].version, release, artifact, mode)
    if isinstance(step, Action) and step.key in tried:
        step = None
    if step is not None:
        yield (_SECOND if is_running else _THIRD), step
    if is_running:
        # An attempt that failed before is repeated, and costs nothing that works.
        prepares = isinstance(step, Action) and not artifact.stays
        for serving in _serve(desired, observed, driver, artifact, prepares=prepares):
            yield (_SECOND if prepares else _FIRST), serving


def _prepare(
    name: str, version: str, release: str, artifact: KernelArtifact, mode: Mode
) -> Step | None:
    """Return the step that makes the artifact for a kernel; None if it exists."""
    failure = artifact.known.failure
    if failure is not None and failure.reason == "state":
        # What a newer provision decided stays, whatever is needed or asked for.
        return Blocked(name, release, "failed", failure.message, failure.resolution)
    reason = _need(version, artifact, mode)
    if reason is None:
        return None
    if failure is not None and artifact.holds_off and not mode.retry:
        obstacle: Obstacle = "rejected" if failure.reason == "rejected" else "failed"
        return Blocked(name, release, obstacle, failure.message, failure.resolution)
    if not mode.may_prepare:
        resolution = "Make it when the network is up: provision apply"
        return Blocked(name, release, "missing", reason, resolution)
    return Action("prepare", name, release, reason)


def _need(version: str, artifact: KernelArtifact, mode: Mode) -> str | None:
    """Return why an artifact has to be made; None if it need not be."""
    if artifact.digest is None:
        return "it does not exist yet"
    if not artifact.is_whole:
        return artifact.damage or "it is missing in the store"
    if not mode.may_prepare:
        # The existing artifact works; a later run makes a newer one.
        return None
    if mode.retry and (artifact.known.rejected or artifact.known.failure is not None):
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
    """Yield the steps that take a driver out of use that provision.toml no longer names."""
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
    """Return why an existing artifact is not in use; None if it is."""
    if driver.current != artifact.digest:
        return "another artifact is in use" if driver.current else "no artifact is in use"
    if not driver.is_active:
        return "its vendor file is missing"
    if not observed.is_live:
        return None
    return {
        "yes": None,
        "no": "its modules are not loaded",
        "partly": "some of its modules are not loaded",
        "other": "another build of its modules is loaded",
    }[driver.loaded]


def _hindrance(desired: Desired, driver: ObservedDriver, what: str) -> str | None:
    """Return why loaded modules can't be unloaded; None if they can."""
    if desired.config.policy.unload == "never":
        return f"{what}, and [policy] unload leaves that to a reboot"
    return f"{what} and in use: {'; '.join(driver.users)}" if driver.users else None
