"""What a person or the agent asks for: a driver for a kernel, and how it is built.

A ``DriverRequest`` may leave everything but the driver open. With what the host and the driver's
vendor say, it becomes a ``KernelRequest``, from which a build is decided, or an ``ArtifactQuery``,
which registries and the store are asked. Loads nothing that builds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from provision.distros import find_distro
from provision.distros.kernel_tree import fedora_of_kernel
from provision.errors import NotFoundError
from provision.host.facts import Facts, read_facts
from provision.pin import DistroPin
from provision.pipeline.tree_choice import choose_tree
from provision.pipeline.workspace import Settings
from provision.sources.version_request import VersionRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The options that say which build of a driver is meant, on every command line that takes it.

    Attributes:
        kernel: The kernel's release; None: the one that runs.
        distro: ``debian:12``; None: the host's.
        version: The driver's version, a branch of it, or a kind of branch (``lts``); None or
            ``latest``: the newest that suits the kernel.
        flavour: One of the driver's flavours; None: its default.
        base: Base image; None: what provision.toml names, or the distro's own.
        network: Network of the containers that download; None: what provision.toml says.
        force: Whether to try a kernel that the driver is not known to build on.
        update: Whether packages are solved for again although there is a closure.
    """

    kernel: str | None = None
    distro: str | None = None
    version: str | None = None
    flavour: str | None = None
    base: str | None = None
    network: str | None = None
    force: bool = False
    update: bool = False

    def of(self, driver: str) -> DriverRequest:
        """Return the request for a driver."""
        return DriverRequest(driver, **asdict(self))

    def given(self) -> list[str]:
        """Return the options on the command line that say which build is meant."""
        given = {name: value for name, value in asdict(self).items() if name != "network"}
        return [f"--{name}" for name, value in given.items() if value not in {None, False}]


@dataclass(frozen=True, slots=True)
class DriverRequest(RequestOptions):
    """A request for a driver, on a kernel of some host.

    Attributes:
        driver: Its name in the catalogue.
        prefer: A version to stay with as long as that is possible; None: the newest is wanted.
    """

    driver: str
    prefer: str | None = field(default=None, kw_only=True)

    @property
    def version_name(self) -> str | None:
        """The version, branch or kind of branch; None: the newest, which ``latest`` means too."""
        return None if self.version == "latest" else self.version

    def version_request(self, branches: tuple[str, ...] | None) -> VersionRequest:
        """Return which version is asked for, if a kind of branch stands for some branches."""
        return VersionRequest(self.version_name, branches, self.prefer)


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """How to build; none of it changes the result.

    Attributes:
        jobs: Compilers at once; None: what provision.toml says, or one a processor.
        rebuild: Build although the image exists.
    """

    jobs: int | None = None
    rebuild: bool = False


def own_kernel(settings: Settings, facts: Facts) -> str:
    """Return the kernel of the host.

    Raises:
        NotFoundError: It has none.
    """
    if facts.kernel is None:
        raise NotFoundError(
            f"There is no kernel under '{settings.root}'.",
            resolution="Name the one to build for with --kernel.",
        )
    return facts.kernel


def choose_distro(settings: Settings, name: str | None) -> DistroPin:
    """Return the distro that is named: here, or in provision.toml; or else the host's.

    Raises:
        NotFoundError: It is not supported.
    """
    named = name or settings.config.kernel_distro
    if named is None:
        distro = read_facts(settings.root).distro
        named = f"{distro.id}:{distro.version}"
    return find_distro(named)


def packaged_distro(settings: Settings, name: str | None, kernel: str) -> str | None:
    """Return the distro that a kernel's headers come from; None: the host's own release.

    On Fedora, CoreOS included, that is the release that the kernel's name says.
    """
    named = name or settings.config.kernel_distro
    if named is None and read_facts(settings.root).distro.id == "fedora":
        return fedora_of_kernel(kernel)
    return named


def distro_of_kernel(settings: Settings, kernel: str, name: str | None) -> DistroPin:
    """Return the distro that a Pin for a kernel names.

    Args:
        settings: The host.
        kernel: The kernel's release.
        name: The distro, if it was named.

    Raises:
        NotFoundError: It is not supported.
    """
    choice = choose_tree(settings, kernel, name)
    if choice is not None:
        return choice.distro
    return choose_distro(settings, packaged_distro(settings, name, kernel))
