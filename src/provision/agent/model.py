"""What a host should have, and what it has, as far as a plan depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from provision.host.kernels import Kernels
from provision.store.state import KernelState

# Whether the modules of the artifact for the running kernel are loaded: all; none; some are
# missing; or one of that name is there from another build.
Loaded = Literal["yes", "no", "partly", "other"]


@dataclass(frozen=True, slots=True)
class DesiredDriver:
    """A driver that the host should have.

    Attributes:
        name: Its name in the catalogue.
        version: ``latest``, a branch, a kind of branch or a version.
        flavour: One of its flavours; None: its default.
        options: Parameters of its modules: module, name, value.
    """

    name: str
    version: str = "latest"
    flavour: str | None = None
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Desired:
    """What a host should have.

    Attributes:
        drivers: The drivers.
        is_configured: Whether there is a provision.toml with anything in it; else nothing is taken
            out of use.
        unload: ``idle`` or ``never``: whether modules that no one uses are unloaded for newer ones.
        prebuild: Whether artifacts are made for kernels that may boot next.
        keep: Artifacts to keep of each kernel beyond those that are needed.
        update: ``never`` or ``timer``: whether the timer may move versions forward.
        textfile: Where metrics go; None: to the exporter's own folder, if the host has it.
        settings: Fingerprint of all else in provision.toml that can change an artifact.
        certificate: File of the certificate that modules are signed with; None: they are not.
        catalogue: The catalogue's folders; a driver in a later one masks one of an earlier one.
        templates: Folder of the Dockerfiles' templates.
    """

    drivers: tuple[DesiredDriver, ...] = ()
    is_configured: bool = True
    unload: str = "idle"
    prebuild: bool = True
    keep: int = 1
    update: str = "never"
    textfile: str | None = None
    settings: str = ""
    certificate: str | None = None
    catalogue: tuple[str, ...] = ()
    templates: str = ""


@dataclass(frozen=True, slots=True)
class KernelArtifact:
    """What there is of a driver for one kernel: in the store, and in what the agent remembers.

    Attributes:
        inputs: Fingerprint of what its artifact would be decided from now.
        known: What the agent remembers of it.
        digest: Short digest of the artifact that the kernel uses; None: it has none.
        is_whole: Whether that artifact is in the store, undamaged.
        damage: What is wrong with it.
        fingerprint: Fingerprint of its files' sizes and times, if it is whole.
        version: The driver's version in it.
        unsigned: The registry's image that it came from, if that is not signed.
        holds_off: Whether it is too early, or makes no sense, to try again what failed.
    """

    inputs: str
    known: KernelState = field(default_factory=KernelState)
    digest: str | None = None
    is_whole: bool = False
    damage: str | None = None
    fingerprint: str | None = None
    version: str | None = None
    unsigned: str | None = None
    holds_off: bool = False

    @property
    def is_current(self) -> bool:
        """Whether the artifact is there and made from what it would be made from now."""
        return self.is_whole and self.known.inputs == self.inputs

    def is_damaged(self, digest: str) -> bool:
        """Return whether it is the artifact of a short digest, and has to be put there again."""
        return not self.is_whole and self.digest == digest


@dataclass(frozen=True, slots=True)
class ObservedDriver:
    """What there is of a driver.

    Attributes:
        name: Its name.
        artifacts: By release of the kernels that matter.
        current: Short digest of the artifact in use; None: none.
        is_active: Whether its activation was completed, and the vendor config is in place.
        loaded: Whether the modules of the running kernel's artifact are loaded.
        serves: Whether the artifact in use works: its modules are loaded, where there is a kernel
            that runs.
        users: Who keeps them from being unloaded.
        notes: What is remembered of it and can't be read, and what could not be found out about its
            devices, for people.
    """

    name: str
    artifacts: Mapping[str, KernelArtifact]
    current: str | None = None
    is_active: bool = False
    loaded: Loaded = "no"
    serves: bool = False
    users: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observed:
    """What a host has.

    Attributes:
        kernels: Its kernels.
        is_live: Whether its kernel runs here, so that modules can be loaded.
        drivers: Every driver that it should have, and those that an apply put there, by name.
    """

    kernels: Kernels
    is_live: bool
    drivers: Mapping[str, ObservedDriver]
