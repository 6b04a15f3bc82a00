"""Desired and observed state, plan, run and outcomes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from provision.config import Config, DriverConfig
from provision.errors import ProvisionError
from provision.host.kernels import Kernels
from provision.store.state import Failure, KernelState

# Whether the modules of the running kernel's artifact are loaded: all, none or some of them, or
# modules of the same names from another build.
Loaded = Literal["yes", "no", "partly", "other"]
# Reasons of a failure: what is needed is not there. "no-artifact": the registry lacks it, and this
# host does not build.
UNAVAILABLE = frozenset({"missing", "no-artifact"})


@dataclass(frozen=True, slots=True)
class Desired:
    """What a host should have, as its provision.toml says."""

    config: Config = field(default_factory=Config)
    # Whether provision.toml has content; without, no driver is taken out of use, because a crash or
    # an editor may have emptied it.
    is_configured: bool = True
    # A driver in a later folder masks one in an earlier one.
    catalogue: tuple[Path, ...] = ()

    @property
    def drivers(self) -> Mapping[str, DriverConfig]:
        """The drivers by name."""
        return self.config.drivers


@dataclass(frozen=True, slots=True)
class KernelArtifact:
    """The artifact of a driver for one kernel, in the store and in the agent's state."""

    # Fingerprint of the inputs that would decide its artifact now.
    inputs: str
    # What the agent remembers of it.
    known: KernelState = field(default_factory=KernelState)
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
    # Whether a retry is too early, or makes no sense.
    holds_off: bool = False
    # Whether it was made for the present setting of provision.toml.
    is_wanted: bool = False

    @property
    def stays(self) -> bool:
        """Whether a whole artifact stays because what would replace it is not available.

        provision.toml asks for the same as before, and only the surroundings have changed: the
        distro's repositories no longer have the kernel's headers, for example.
        """
        failure = self.known.failure
        is_unavailable = (
            failure is not None and failure.reason in UNAVAILABLE and failure.inputs == self.inputs
        )
        return is_unavailable and self.is_whole and self.is_wanted

    @property
    def is_current(self) -> bool:
        """Whether the artifact is whole and was made from the present inputs."""
        return self.is_whole and self.known.inputs == self.inputs


@dataclass(frozen=True, slots=True)
class ObservedDriver:
    """The observed state of a driver."""

    name: str
    artifacts: Mapping[str, KernelArtifact]
    # Short digest of the active artifact; None: no artifact is active.
    current: str | None = None
    # Whether its activation is complete and the vendor file is in place.
    is_active: bool = False
    # Whether the modules of the running kernel's artifact are loaded.
    loaded: Loaded = "no"
    # Whether the active artifact works: its modules are loaded, if a kernel runs there.
    serves: bool = False
    users: tuple[str, ...] = ()
    # Unreadable state and problems with its devices, for people.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observed:
    """The observed state of a host."""

    kernels: Kernels
    # Whether its kernel runs here, so that modules can be loaded.
    is_live: bool
    # The desired drivers, and those that an apply has installed, by name.
    drivers: Mapping[str, ObservedDriver]


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
    """One action of a plan."""

    # ``prepare`` an artifact (find, pull or build it, and put it into the store), ``unload``
    # modules, ``activate`` the artifact (user space and vendor file), ``load`` modules, ``retire``
    # a driver (remove its links and vendor file).
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


@dataclass(frozen=True, slots=True)
class Blocked:
    """An action that is needed but not possible now."""

    driver: str
    kernel: str
    obstacle: Obstacle
    reason: str
    resolution: str | None = None


@dataclass(frozen=True, slots=True)
class Mode:
    """The mode of a run."""

    # Whether artifacts may be made; not at boot, where there may be no network.
    may_prepare: bool = True
    retry: bool = False
    # Whether versions that are not fixed may move forward.
    update: bool = False
    allow_downgrade: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in their order, and blocked ones; both are empty if the host is as desired."""

    actions: tuple[Action, ...] = ()
    blocked: tuple[Blocked, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """The context of a run."""

    root: Path
    desired: Desired
    mode: Mode = field(default_factory=Mode)
    catalogues: Sequence[Path] = ()
    # Kernels that may boot next, in addition to those that the host names.
    coming: tuple[str, ...] = ()
    # Mount point of a /usr that boots next.
    usr: Path | None = None
    # The driver that the run concerns; None: all.
    only: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an action."""

    action: Action
    result: str
    seconds: float
    # Its error; None: it succeeded.
    error: ProvisionError | None = None
    # The error, as the state records it.
    failure: Failure | None = None
