"""What a family of distros does with a distro's data: its protocol, and what goes in and out of it.

Nothing here starts a process or reads the network: a family writes scripts, which
``provision.build.solve`` runs in a container of the base image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from provision.distros.distro import Distro, FamilyName, Release
from provision.errors import ProvisionError
from provision.pin import ClosurePackage

# Where a solving container's files lie; each script may write below it, and nowhere else.
WORK = "/provision/solve"


@dataclass(frozen=True, slots=True)
class Spec:
    """Something to install, as the distro's solver takes it.

    Attributes:
        text: ``kernel-devel-uname-r = 5.14.0-427.el9.x86_64``, ``gcc``, ``linux-headers-K``; a
            package's path in the container, where no repository has it.
        major: Major version that the package must have; None: any.
        path: Folder of its programs, where that is not on the usual search path.
    """

    text: str
    major: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class HeaderQuery:
    """Where the headers of a kernel are.

    Attributes:
        flavour: Which of the distro's flavours the kernel is.
        specs: Packages to solve for.
        build: The build folder, absolute.
        source: The folder of the whole source, absolute.
        config: The kernel's configuration, absolute.
        repository: What to enable if the packages are not found.
    """

    flavour: str
    build: str
    source: str
    config: str
    specs: tuple[Spec, ...] = ()
    repository: str | None = None


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository that is used instead of those that the base image names.

    Attributes:
        id: One word; the suite, for the family of apt.
        urls: Its addresses: mirrors of one content.
        keys: The keys that its packages are signed with, in ASCII armour, by file name.
        components: Of a suite, for the family of apt; empty: those that are always read.
        is_snapshot: Whether its index counts although its time of validity is over.
        is_signed: Whether its index has to be signed too, for the families of dnf and zypper.
    """

    id: str
    urls: tuple[str, ...]
    keys: Mapping[str, bytes] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    is_snapshot: bool = False
    is_signed: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """What to run in a container of the base image.

    Attributes:
        text: For ``sh``, with ``set -eu``; it prints what goes on.
        files: Contents by path below ``WORK``, put there before.
        output: Path of the file below ``WORK`` that ``Family.parse`` reads.
        folder: Folder below ``WORK`` with the downloaded packages; None: there are none.
        config: Path below ``WORK`` of a copy of the kernel's configuration; None: it is missing.
        downloaded: Line that it prints when all of ``folder`` is there, before it is checked; None:
            it prints none.
    """

    text: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    output: str = "closure"
    folder: str | None = "packages"
    config: str | None = None
    downloaded: str | None = None


@dataclass(frozen=True, slots=True)
class Package:
    """A package of a closure, as a solver found it.

    Attributes:
        pinned: What the Pin says of it.
        file: Its file's name in ``Script.folder``.
        urls: Its addresses.
    """

    pinned: ClosurePackage
    file: str
    urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A script that failed.

    Attributes:
        status: Its exit status.
        said: What it printed.
        distro: The distro.
        release: Its release.
        kernel: The kernel that is built for.
        architecture: As ``uname -m`` prints it.
        query: Where its headers are.
        image: Name of the base image.
        full_version: ``VERSION_ID`` in its os-release, where that is known.
    """

    status: int
    said: str
    distro: Distro
    release: Release
    kernel: str
    architecture: str
    query: HeaderQuery
    image: str = ""
    full_version: str | None = None


class Family(Protocol):
    """What distros of one package manager have in common. Pure: nothing here starts anything."""

    name: FamilyName

    def headers(self, distro: Distro, kernel: str, architecture: str) -> HeaderQuery:
        """Return where a kernel's headers are.

        Raises:
            NotFoundError: The distro has no kernels of that name, or the flavour can't be built.
        """

    def solve(
        self,
        distro: Distro,
        release: Release,
        specs: tuple[Spec, ...],
        repositories: tuple[Repository, ...],
        *,
        config: str | None = None,
    ) -> Script:
        """Return what solves for packages, downloads the whole closure and checks signatures.

        Args:
            distro: The distro.
            release: Its release.
            specs: What is wanted.
            repositories: Used instead of the base image's own; empty: those.
            config: The kernel's configuration to copy out of the first spec's packages, as an
                absolute path where they are installed; None: none.
        """

    def parse(self, output: bytes) -> tuple[Package, ...]:
        """Return the closure that a script wrote, in the order of names.

        Raises:
            ProvisionError: It is not what the script writes.
        """

    def installed(self, output: bytes) -> Mapping[str, str]:
        """Return the versions of the base image's own packages by name, as a script wrote them."""

    def holds_headers(self, name: str) -> bool:
        """Return whether a package of a closure holds headers of the kernel."""

    def compiler(self, distro: Distro, cc_version_text: str) -> tuple[Spec, ...]:
        """Return the packages that may hold a compiler, the preferred one first.

        Args:
            distro: The distro.
            cc_version_text: The value of ``CONFIG_CC_VERSION_TEXT``.

        Raises:
            ProvisionError: The text names no compiler that is known.
        """

    def explain(self, failure: Failure) -> ProvisionError:
        """Return what to say about a script that failed."""

    def kernels(
        self, distro: Distro, release: Release, repositories: tuple[Repository, ...]
    ) -> Script:
        """Return what lists the kernels whose headers the repositories have."""

    def parse_kernels(self, output: bytes) -> tuple[str, ...]:
        """Return the kernels' releases, the newest first."""
