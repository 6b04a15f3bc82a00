"""What is known of a distro, and what a family of distros does with it. Data types only.

A distro is a data file (``<id>.toml`` beside this module); a family is one module behind the
protocol ``Family`` and one Dockerfile template. Nothing here starts a process or reads the network:
a family writes scripts, which ``provision.image.solve`` runs in a container of the base image.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from provision.documents import Frozen
from provision.errors import ProvisionError
from provision.pin import ClosurePackage, DistroPin, Name

FamilyName = Literal["apt", "dnf", "zypper", "tree"]
# Where a solving container's files lie; each script may write below it, and nowhere else.
WORK = "/provision/solve"


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"'{text}' is no regular expression: {error}") from error
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00\n]*$")]
Placeholder = Annotated[str, StringConstraints(min_length=1)]


class Release(Frozen):
    """One release of a distro.

    Attributes:
        version: As os-release has it (``VERSION_ID``), or its beginning: ``9`` stands for 9.4.
        codename: One word; Debian's is part of its archive's paths.
        end: Date when its maintenance ends, as ``YYYY-MM-DD``.
        image: Base image, as ``docker pull`` takes it.
        keys: Keys of its packages instead of the distro's, as paths in the base image.
        tools: Packages that the template's own steps call, besides the distro's.
    """

    version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][A-Za-z0-9._-]*$")]
    codename: Name
    end: Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")] | None = None
    image: str
    keys: tuple[AbsolutePath, ...] = ()
    tools: tuple[str, ...] = ()


class HeaderRule(Frozen):
    """How the headers of one flavour of kernels are found; the first rule that matches counts.

    Attributes:
        flavour: What messages call it.
        kernels: Regular expression for the whole release; its named groups are placeholders of
            the other fields, and so are ``{kernel}``, ``{arch}`` and ``{cpu}``.
        specs: What the solver is asked for.
        build: The build folder that the packages bring.
        source: The folder of the whole source, where that is another one.
        repository: What to enable if the headers are not found: a repository's name or address.
        refusal: Why kernels of this flavour can't be built for; then there are no specs.
    """

    flavour: Name
    kernels: Pattern
    specs: tuple[Placeholder, ...] = ()
    build: AbsolutePath | None = None
    source: AbsolutePath | None = None
    repository: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.refusal is None) != bool(self.specs and self.build):
            raise ValueError("give either 'specs' and 'build', or 'refusal'")
        return self


class CompilerRule(Frozen):
    """A package that may hold the compiler of a major version; rules are tried in their order.

    Attributes:
        command: Name of the compiler's program in ``CONFIG_CC_VERSION_TEXT`` (``gcc``, ``clang``).
        package: What the solver is asked for; ``{major}`` is the compiler's major version.
        path: Folder of its programs, where that is not on the usual search path.
    """

    command: Literal["gcc", "clang"] = "gcc"
    package: Placeholder
    path: AbsolutePath | None = None


class Entitlement(Frozen):
    """A file or folder of the host that allows it to use the distro's repositories.

    It is bound read-only into the solving container, and never part of an image.

    Attributes:
        host: Path on the host.
        container: Path in the solving container.
        required: Whether nothing can be solved without it.
    """

    host: AbsolutePath
    container: AbsolutePath
    required: bool = False


class Archive(Frozen):
    """Where a distro keeps packages that its repositories have dropped.

    Attributes:
        name: What messages call it: ``the vault of Rocky Linux``.
        url: Its address, for people.
        repositories: Addresses of repositories there, with the placeholders ``{version}`` (as
            os-release has it), ``{major}`` and ``{arch}``; empty where they can't be derived.
        hint: How to use it, where more than an address is needed.
    """

    name: str
    url: str
    repositories: tuple[str, ...] = ()
    hint: str | None = None


class Proof(Frozen):
    """What was run for a distro, and on what.

    Attributes:
        what: Such as ``closure, build``.
        on: Such as ``a stand-in made from Debian's packages``; None: nothing was run.
        real: Whether that was the distro itself.
    """

    what: str
    on: str | None = None
    real: bool = False


class Distro(Frozen):
    """A distro: the content of its data file.

    Attributes:
        id: ``ID`` of os-release.
        name: Its own name.
        family: Which module and template serve it.
        like: Another distro whose data hold where this file has none.
        releases: Its releases, oldest first.
        headers: How headers are found, by flavour of the kernel.
        compilers: Packages of compilers.
        tools: Packages that the template's own steps call, whatever the driver.
        names: What it calls the packages that recipes name as Debian does.
        keys: Keys of its packages, as glob patterns in the base image.
        entitlement: What a host needs to use its repositories.
        environment: Variables of the solving container.
        options: What the package manager is given besides.
        archives: Where superseded packages are.
        proven: What was run.
    """

    schema_version: Literal[1] = Field(alias="schema")
    id: Name
    name: str
    family: FamilyName
    like: Name | None = None
    releases: tuple[Release, ...] = Field(min_length=1)
    headers: tuple[HeaderRule, ...] = ()
    compilers: tuple[CompilerRule, ...] = ()
    tools: tuple[str, ...] = ()
    names: dict[str, str] = Field(default_factory=dict)
    keys: tuple[AbsolutePath, ...] = ()
    entitlement: tuple[Entitlement, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    options: tuple[Annotated[str, StringConstraints(pattern=r"^--[^\s\x00]+$")], ...] = ()
    archives: tuple[Archive, ...] = ()
    proven: tuple[Proof, ...] = ()

    def release(self, version: str) -> Release | None:
        """Return the release of a version or codename: the exact one, else that of its beginning.

        ``9.4`` is a release of ``9``; ``15.6`` is ``15.6`` before it is ``15``.
        """
        words = version.split(".")
        for count in range(len(words), 0, -1):
            wanted = ".".join(words[:count])
            for release in self.releases:
                if wanted == release.version or version == release.codename:
                    return release
        return None

    def build_tools(self, release: Release, wanted: Iterable[str]) -> tuple[str, ...]:
        """Return the packages of a build besides headers and compiler, sorted.

        Args:
            release: One of its releases.
            wanted: What a recipe asks for, by Debian's names.
        """
        named = (self.names.get(name, name) for name in wanted)
        return tuple(sorted({*self.tools, *release.tools, *named}))

    def pin(self, release: Release) -> DistroPin:
        """Return what a Pin says of a release."""
        return DistroPin(id=self.id, version=release.version, codename=release.codename)


@dataclass(frozen=True, slots=True)
class Spec:
    """Something to install, as the distro's solver takes it.

    Attributes:
        text: ``kernel-devel-uname-r = 5.14.0-427.el9.x86_64``, ``gcc``, ``linux-headers-K``.
        major: Major version that the package must have; None: any.
        path: Folder of its programs, where that is not on the usual search path.
    """

    text: str
    major: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a vendor that is no package.

    Attributes:
        name: What it is called in the store and in messages.
        urls: Its addresses, tried in this order.
        sha256: Its checksum; None: ``checksum_url`` or ``signature_url`` vouches for it.
        checksum_url: Address of a file with its checksum.
        signature_url: Address of its detached signature.
    """

    name: str
    urls: tuple[str, ...]
    sha256: str | None = None
    checksum_url: str | None = None
    signature_url: str | None = None


@dataclass(frozen=True, slots=True)
class HeaderQuery:
    """Where the headers of a kernel are: packages, files, an image or a source tree.

    Attributes:
        flavour: Which of the distro's flavours the kernel is.
        specs: Packages to solve for.
        files: Files to download.
        image: A base image that has them.
        tree: Whether the build folder is prepared from a source tree in the build container.
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
    files: tuple[RemoteFile, ...] = ()
    image: str | None = None
    tree: bool = False
    repository: str | None = None


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository that is used instead of those that the base image names.

    Attributes:
        id: One word.
        urls: Its addresses: mirrors of one content.
        keys: The keys that its packages are signed with, in ASCII armour, by file name.
    """

    id: str
    urls: tuple[str, ...]
    keys: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Script:
    """What to run in a container of the base image.

    Attributes:
        text: For ``sh``, with ``set -eu``; it prints what goes on.
        files: Contents by path below ``WORK``, put there before.
        output: Path of the file below ``WORK`` that ``Family.parse`` reads.
        folder: Folder below ``WORK`` with the downloaded packages; None: there are none.
        config: Path below ``WORK`` of a copy of the kernel's configuration; None: there is none.
    """

    text: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    output: str = "closure"
    folder: str | None = "packages"
    config: str | None = None


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
        is_own: Whether repositories of provision.toml were used.
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
    is_own: bool = False


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
