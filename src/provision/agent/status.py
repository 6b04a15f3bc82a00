"""A host's status: for people, for programs (``status.json``), as an exit code, and as metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from provision.agent.model import (
    UNAVAILABLE,
    Action,
    Desired,
    KernelArtifact,
    Observed,
    ObservedDriver,
    Plan,
    Unnamed,
)
from provision.config import Config, KubernetesConfig
from provision.errors import ExitCode, NotFoundError, ProvisionError, plain
from provision.files import in_root, remove_drafts, write_atomic
from provision.host.kernels import Kernels
from provision.progress import Note, report
from provision.store.foreign import OtherInstallation
from provision.store.state import IN_USE, Failure

SCHEMA = 1
# From the worst to the best; the worst kernel and driver give a host its state. Without a kernel,
# nothing is known of a driver. A host whose provision.toml names no driver, and that has none left,
# is not configured.
State = Literal[
    "failed",
    "missing",
    "next-kernel-not-ready",
    "reboot-required",
    "unknown",
    "pending",
    "not-configured",
    "ready",
]
_ORDER: tuple[State, ...] = get_args(State)
_CODES: Mapping[State, ExitCode] = {
    "failed": ExitCode.FAILED,
    "missing": ExitCode.NOT_FOUND,
    "reboot-required": ExitCode.IN_USE,
}
# The state of an artifact by the reason of its failure, and by what blocks it.
_OF_REASONS: Mapping[str, State] = {
    IN_USE: "reboot-required",
    **dict.fromkeys(UNAVAILABLE, "missing"),
}
_OF_OBSTACLES: Mapping[str, State] = {
    "reboot-required": "reboot-required",
    "unserved": "failed",
}

NAME_A_DRIVER = (
    "Name a driver in /etc/provision/provision.toml, such as [drivers.nvidia] ('provision drivers'"
    " lists them), then run 'provision plan'."
)


class ArtifactStatus(NamedTuple):
    """The status of a driver for one kernel."""

    release: str
    # ``running``, or ``next``: it may run after the next boot.
    role: Literal["running", "next"]
    # ``ready``; ``pending``: an apply would change something; ``failed``; ``missing``: the kernel,
    # its headers or the driver is not available; ``reboot-required``.
    state: State
    # Whether the driver works with this kernel, even with an older artifact.
    is_ready: bool
    # Whether a boot of this kernel has the driver, for all that is known.
    is_ready_at_boot: bool
    version: str | None
    digest: str | None
    # The image of a registry that it came from, if that image is not signed.
    unsigned: str | None
    # Why the host would not admit it to the store today; None: it would.
    distrust: str | None
    previous: str | None
    # Artifacts that were rolled back from.
    rejected: tuple[str, ...]
    # Unix time when the artifact was made or found.
    prepared: int | None
    seconds: Mapping[str, float]
    # Why it is not ``ready``, or why it stays as it is.
    reason: str | None = None
    resolution: str | None = None
    failure: Failure | None = None


class DriverStatus(NamedTuple):
    """The status of a driver."""

    name: str
    # The configured version.
    wanted: str
    flavour: str | None
    # The worst state of its kernels.
    state: State
    # Whether it works now.
    is_ready: bool
    # Short digest of the active artifact.
    current: str | None
    # The driver's version in the running kernel's artifact.
    version: str | None
    # ``yes``, ``no``, ``partly``, ``other``; None: no kernel runs there.
    loaded: str | None
    users: tuple[str, ...]
    kernels: tuple[ArtifactStatus, ...]
    # Unreadable state, and problems with its devices.
    notes: tuple[str, ...] = ()
    # What the host has of it that provision did not install; None: nothing.
    other: OtherInstallation | None = None


class HoldStatus(NamedTuple):
    """That the boot loader's default is held, by ``[policy] hold_kernels``."""

    # The default, and the kernel that lacks a driver; None: nothing is held.
    kernel: str | None
    instead_of: str | None
    # Why it is not as it should be.
    problem: str | None

    @property
    def line(self) -> str:
        """What people are told."""
        if self.kernel is None:
            return f"No kernel is held ([policy] hold_kernels): {self.problem}"
        return f"{self.kernel} boots next: {self.instead_of} lacks a driver (provision status)"


class Status(NamedTuple):
    """The status of a host."""

    # Unix time of the observation.
    time: int
    # The worst state of its drivers, and of the kernels that could not be looked at.
    state: State
    # Whether there are drivers, and all of them work now.
    is_ready: bool
    # The exit code of the command that shows or publishes it.
    exit_code: int
    kernels: Kernels
    drivers: tuple[DriverStatus, ...]
    planned: tuple[str, ...]
    # What is there besides, such as what 'provision install' put into a root without settings.
    unnamed: tuple[Unnamed, ...] = ()
    # A failure of the run, of removing a driver, or of looking, which belongs to no kernel.
    error: ProvisionError | None = None
    # None: nothing is held, and nothing hinders it.
    hold: HoldStatus | None = None

    @property
    def check_code(self) -> ExitCode:
        """The exit code of whether every driver works, and will after a reboot.

        ``IN_USE``: a reboot costs no driver, and something waits for it. A newer version that is
        not used, for whatever reason, changes nothing; neither does a kernel that is held back.
        """
        if self.state in {"not-configured", "unknown"}:
            return ExitCode.NOT_FOUND
        if self.error is not None:
            return ExitCode(self.exit_code)
        held_back = self.hold.instead_of if self.hold else None
        artifacts = [one for driver in self.drivers for one in driver.kernels]
        lacking = {
            one.state
            for one in artifacts
            if (one.role, one.release) != ("next", held_back)
            # A pending one may be of a kernel that was built again under the same release: what
            # is there need not load any more.
            and (one.state == "pending" or not one.is_ready_at_boot or not one.is_ready)
            and not (one.state == "reboot-required" and one.is_ready_at_boot)
        }
        if lacking:
            code = _exit_code(lacking)
            return code if code in {ExitCode.FAILED, ExitCode.NOT_FOUND} else ExitCode.FAILED
        if self.kernels.notes:
            # A kernel that may boot next could not be looked at.
            return ExitCode.NOT_FOUND
        # The latter: of a driver that provision.toml no longer names.
        waits = any(one.state == "reboot-required" for one in artifacts)
        is_waiting = waits or self.exit_code == ExitCode.IN_USE
        return ExitCode.IN_USE if is_waiting else ExitCode.DONE

    def document(self) -> dict[str, Any]:
        """Return the content of ``status.json``, as in ``docs/reference/status.schema.json``."""
        document = plain(self._replace(error=None))
        if self.error is not None:
            error = self.error.document()
            members = ("message", "resolution", "details", "exit_code")
            document["error"] = {name: error[name] for name in members}
        for driver in document["drivers"]:
            for artifact in driver["kernels"]:
                if (failure := artifact["failure"]) is not None:
                    # Keys of a newer provision are not part of this format.
                    artifact["failure"] = {name: failure[name] for name in Failure.model_fields}
        return {"schema": SCHEMA, **document}


def failed_status(error: ProvisionError, *, time: int) -> Status:
    """Return the status of a host that could not be observed."""
    return Status(
        time,
        "failed",
        is_ready=False,
        exit_code=int(error.exit_code),
        kernels=Kernels(None),
        drivers=(),
        planned=(),
        error=error,
    )


def status_of(
    desired: Desired,
    observed: Observed,
    plan: Plan,
    *,
    time: int,
    error: ProvisionError | None = None,
) -> Status:
    """Return the status of a host.

    Args:
        error: A failure that belongs to no kernel, which makes the host's state ``failed``.
    """
    drivers = tuple(_driver(name, observed, desired, plan) for name in desired.drivers)
    # Drivers that provision.toml no longer names, and whose modules are still in use.
    lingering: tuple[State, ...] = tuple(
        "reboot-required" for blocked in plan.blocked if blocked.driver not in desired.drivers
    )
    artifacts = (artifact.state for driver in drivers for artifact in driver.kernels)
    # A kernel that may boot next and could not be looked at is like one that lacks a driver.
    is_blind = bool(drivers and observed.kernels.relevant and observed.kernels.notes)
    unseen: tuple[State, ...] = ("next-kernel-not-ready",) if is_blind else ()
    states = (*lingering, *unseen, *(driver.state for driver in drivers))
    state: State = "failed"
    if error is None:
        state = _worst(states) if states else "pending" if plan.actions else "not-configured"
        error = _unseen(observed.kernels) if state == "unknown" else None
    missing: tuple[State, ...] = ("missing",) if is_blind else ()
    exit_code = int(_exit_code({*lingering, *missing, *artifacts}))
    return Status(
        time=time,
        state=state,
        is_ready=bool(drivers) and all(driver.is_ready for driver in drivers),
        exit_code=int(error.exit_code) if error else exit_code,
        kernels=observed.kernels,
        drivers=drivers,
        planned=tuple(map(str, plan.actions)),
        unnamed=observed.unnamed,
        error=error,
        hold=_hold(observed),
    )


def _hold(observed: Observed) -> HoldStatus | None:
    held, problem = observed.hold.held, observed.hold.problem
    if held is not None and held.is_set:
        return HoldStatus(held.kernel, held.instead_of, problem)
    return HoldStatus(None, None, problem) if problem else None


def _unseen(kernels: Kernels) -> ProvisionError:
    return NotFoundError(
        "There is no complete kernel here, so nothing is known about its drivers.",
        resolution="Install a kernel under this root, or write its modules.dep (depmod); or name"
        " the kernel that is to come: provision apply --kernel RELEASE",
        details="\n".join(f"{release} is not complete" for release in kernels.incomplete) or None,
    )


def _driver(name: str, observed: Observed, desired: Desired, plan: Plan) -> DriverStatus:
    setting, driver = desired.drivers[name], observed.drivers[name]
    running = observed.kernels.running
    artifacts = tuple(
        _artifact(driver, release, observed, plan) for release in observed.kernels.relevant
    )
    return DriverStatus(
        name=name,
        wanted=setting.version,
        flavour=setting.flavour,
        state=_worst(
            "next-kernel-not-ready"
            if artifact.role == "next" and artifact.state in {"failed", "missing"}
            else artifact.state
            for artifact in artifacts
        ),
        is_ready=driver.serves and bool(artifacts),
        current=driver.current,
        version=driver.artifacts[running].version if running else None,
        loaded=driver.loaded if observed.is_live else None,
        users=driver.users,
        kernels=artifacts,
        notes=driver.notes,
        other=driver.other,
    )


def _artifact(
    driver: ObservedDriver, release: str, observed: Observed, plan: Plan
) -> ArtifactStatus:
    artifact = driver.artifacts[release]
    is_running = release == observed.kernels.running
    # The last failure with the present inputs, or else that of loading.
    failure = artifact.known.failure
    if failure is None or failure.inputs != artifact.inputs:
        failure = artifact.known.load_failure
        if is_running and driver.serves and driver.current == artifact.digest:
            # The modules were loaded since, by hand for example.
            failure = None
    here = (driver.name, release)
    hindrances = (one for one in plan.blocked if (one.driver, one.kernel) == here)
    blocked = min(hindrances, key=lambda one: one.obstacle != "unserved", default=None)
    planned = [
        action
        for action in plan.actions
        if (action.driver, action.kernel) == here
        and not (artifact.keeps_old and action.kind == "prepare")
        # What can't be tried is used as it is.
        and action.kind != "try"
    ]
    state: State = "ready"
    reason = resolution = None
    if failure is not None and not artifact.keeps_old:
        state = _OF_REASONS.get(failure.reason, "failed")
        reason, resolution = failure.message, failure.resolution
    elif blocked is not None:
        state = _OF_OBSTACLES.get(blocked.obstacle, "pending")
        reason, resolution = blocked.reason, blocked.resolution
    elif planned:
        state, reason, resolution = _planned(driver, artifact, planned[0])
    elif failure is not None:
        reason = f"it stays, because it could not be made again: {failure.message}"
        resolution = failure.resolution
    elif artifact.is_untried:
        reason, resolution = _untried(artifact)
    if state == "ready" and artifact.distrust is not None:
        # Where nothing may be made now, as at boot, it is not planned either.
        state = "pending"
        reason, resolution = f"it is not trusted now: {artifact.distrust}", "Run: provision apply"
    return ArtifactStatus(
        release=release,
        role="running" if is_running else "next",
        state=state,
        is_ready=driver.serves if is_running else artifact.is_whole,
        is_ready_at_boot=artifact.is_ready_at_boot,
        version=artifact.version,
        digest=artifact.digest,
        unsigned=artifact.unsigned,
        distrust=artifact.distrust,
        previous=artifact.known.previous,
        rejected=artifact.known.rejected,
        prepared=artifact.known.prepared,
        seconds=artifact.known.seconds,
        reason=reason,
        resolution=resolution,
        failure=failure,
    )


def _untried(artifact: KernelArtifact) -> tuple[str, str | None]:
    why = artifact.known.untried
    if why is None:
        return "its modules are still to be tried", "Run: provision apply"
    return f"its modules were not tried: {why.message}", why.resolution


def _planned(
    driver: ObservedDriver, artifact: KernelArtifact, action: Action
) -> tuple[State, str, str | None]:
    unknown = driver.unknown
    if unknown is None or action.kind != "prepare":
        return "pending", action.reason, "Run: provision apply"
    state: State = "missing" if unknown.exit_code == ExitCode.NOT_FOUND else "failed"
    reason = "\n".join(filter(None, (unknown.message, unknown.details)))
    # What is there works on.
    return "pending" if artifact.is_whole else state, reason, unknown.resolution


def _worst(states: Iterable[State]) -> State:
    """Return the worst of some states; what nothing was looked at for is unknown."""
    return min(states, key=_ORDER.index, default="unknown")


def _exit_code(states: set[State]) -> ExitCode:
    return next((code for state, code in _CODES.items() if state in states), ExitCode.DONE)


STATUS = Path("run/provision/status.json")
# Shown at each login: pam_motd(8).
MOTD = Path("run/motd.d/provision")
# The exporter's folder in the packages of Debian and Fedora.
EXPORTER_FOLDERS = (
    Path("var/lib/prometheus/node-exporter"),
    Path("var/lib/node_exporter/textfile_collector"),
)
METRICS = "provision.prom"
# Node Feature Discovery makes this folder on the nodes of a cluster.
FEATURES = Path("etc/kubernetes/node-feature-discovery/features.d")
_LONGEST_LABEL = 63
# Labels of an agent that has stopped go away: it runs once an hour.
_FEATURES_EXPIRE_S = 3 * 3600


def publish(root: Path, status: Status, config: Config) -> tuple[str, ...]:
    """Publish a host's status; the caller holds the host's lock.

    Returns:
        The files that could not be written, with reasons; a run does not fail for that.
    """
    problems = []
    files = {in_root(root, STATUS, follow=False): json.dumps(status.document(), indent=2) + "\n"}
    folders = (in_root(root, folder) for folder in EXPORTER_FOLDERS)
    folder = next(filter(Path.is_dir, folders), None)
    if config.metrics.textfile is not None:
        files[in_root(root, config.metrics.textfile, follow=False)] = metrics_text(status)
    elif folder is not None:
        files[folder / METRICS] = metrics_text(status)
    # Without a line, the file stays empty: pam_motd then shows nothing.
    motd = in_root(root, MOTD, follow=False)
    if status.hold is not None or motd.exists():
        files[motd] = f"{status.hold.line}\n" if status.hold else ""
    features = in_root(root, FEATURES)
    if features.is_dir():
        files[features / "provision"] = node_features(status, config.kubernetes)
    for path, text in files.items():
        remove_drafts(path)
        try:
            write_atomic(path, text)
        except OSError as error:
            problems.append(f"'{path}' could not be written: {error.strerror or error}")
    for problem in problems:
        report(Note(problem))
    return tuple(problems)


Sample = tuple[Mapping[str, object], float]
# Metrics of a driver for a kernel: the name, the description, and the samples of an artifact.
_OF_ARTIFACTS: tuple[tuple[str, str, Callable[[ArtifactStatus], Iterable[Sample]]], ...] = (
    ("driver_ready", "Whether the driver works with the kernel.", lambda a: [({}, a.is_ready)]),
    (
        "driver_info",
        "The artifact that the kernel uses.",
        lambda a: [({"version": a.version or "", "digest": a.digest or ""}, 1)],
    ),
    (
        "prepare_seconds",
        "How long it took to have the artifact in the store, by part.",
        lambda a: [({"part": part}, taken) for part, taken in a.seconds.items()],
    ),
    (
        "last_success_timestamp_seconds",
        "When the artifact was last made or found.",
        lambda a: [({}, a.prepared)] if a.prepared else [],
    ),
    (
        "failures",
        "How often in a row the artifact could not be had, or loaded, by reason.",
        lambda a: [({"reason": a.failure.reason}, a.failure.attempts)] if a.failure else [],
    ),
)


def metrics_text(status: Status) -> str:
    """Return a host's metrics in the text format.

    Source: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
    """
    found = [
        ({"driver": driver.name, "kernel": artifact.release, "role": artifact.role}, artifact)
        for driver in status.drivers
        for artifact in driver.kernels
    ]
    waits = any(artifact.state == "reboot-required" for _where, artifact in found)
    held = status.hold if status.hold and status.hold.kernel else None
    metrics: list[tuple[str, str, list[Sample]]] = [
        (name, help_, [({**where, **of}, n) for where, one in found for of, n in samples(one)])
        for name, help_, samples in _OF_ARTIFACTS
    ]
    metrics += [
        ("reboot_required", "Whether a newer driver waits for a reboot.", [({}, waits)]),
        (
            "kernel_held",
            "Whether a kernel is the boot loader's default, instead of one that lacks a driver.",
            [({"kernel": held.kernel, "instead_of": held.instead_of or ""}, 1)] if held else [],
        ),
        ("ready", "Whether all drivers work.", [({}, status.is_ready)]),
        ("exit_code", "What the last run ended with.", [({}, status.exit_code)]),
        ("observed_timestamp_seconds", "When this was observed.", [({}, status.time)]),
    ]
    lines = []
    for name, help_, of_it in metrics:
        shown = [f"provision_{name}{_labels(labels)} {value:.12g}" for labels, value in of_it]
        if shown:
            head = (f"# HELP provision_{name} {help_}", f"# TYPE provision_{name} gauge")
            lines += [*head, *shown]
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, object]) -> str:
    escapes = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
    text = ",".join(f'{name}="{str(label).translate(escapes)}"' for name, label in labels.items())
    return f"{{{text}}}" if text else ""


def node_features(status: Status, kubernetes: KubernetesConfig) -> str:
    """Return a host's state as a feature file, of which Node Feature Discovery makes labels.

    Source: https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/customization-guide
    """
    label = kubernetes.labels
    expiry = datetime.fromtimestamp(status.time + _FEATURES_EXPIRE_S, UTC)
    lines = [
        f"# +expiry-time={expiry:%Y-%m-%dT%H:%M:%SZ}",
        f"{label}.ready={str(status.is_ready).lower()}",
    ]
    if status.kernels.running:
        lines.append(f"{label}.kernel={_label_value(status.kernels.running)}")
    for driver in status.drivers:
        # The part after the slash has 63 characters at most.
        own = label.rpartition("/")[2]
        name = driver.name[: _LONGEST_LABEL - len(f"{own}-.version")]
        lines.append(f"{label}-{name}.state={driver.state}")
        if driver.version:
            lines.append(f"{label}-{name}.version={_label_value(driver.version)}")
    ready = {driver.name for driver in status.drivers if driver.is_ready}
    lines += [f"{gate}=false" for gate, name in kubernetes.gates.items() if name not in ready]
    return "\n".join([*lines, ""])


def _label_value(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:_LONGEST_LABEL].strip("._-")
