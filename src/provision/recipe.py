"""The recipe of a driver, ``driver.toml``: where it comes from, how it is built, what it ships.

Data types only; ``provision.catalogue`` finds and loads the files.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion
from packaging.version import Version as PepVersion
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from provision.documents import Frozen
from provision.manifest import Container, FeatureName, FileKind, HostNeeds, RelativePath
from provision.pin import (
    ArchiveSource,
    Commit,
    GitSource,
    Name,
    PackageName,
    Sha256,
    Url,
    Version,
)
from provision.upstream import Upstream

# What a recipe's texts may refer to; resolve and render fill them in.
PLACEHOLDERS = frozenset(
    {"arch", "jobs", "kernel", "kernel_build", "kernel_source", "multiarch", "source", "version"}
)
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
# Those that provision.render.quoting refuses.
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


def _specifiers(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"'{text}' is no version specifier such as '>=5.4,<6.13'") from error
    return text


def _one_line(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("holds a control character, which can't go into a Dockerfile")
    return text


def _text(text: str) -> str:
    # Line ends may be there: it is put on one line where it is used.
    _one_line(" ".join(text.split()))
    return text


def _placeholders(text: str, *, known: frozenset[str] = PLACEHOLDERS) -> str:
    unknown = sorted(set(_PLACEHOLDER.findall(text)) - known)
    if unknown:
        names = ", ".join(sorted(known))
        raise ValueError(f"unknown placeholder '{{{unknown[0]}}}'; there are {names}")
    return text


def _fixed_placeholders(text: str) -> str:
    # The number of jobs differs from build to build: nothing that is shipped may depend on it. The
    # source's folder is an absolute path of the build, and these are relative ones.
    return _placeholders(text, known=PLACEHOLDERS - {"jobs", "source"})


Specifiers = Annotated[str, AfterValidator(_specifiers)]
Argument = Annotated[str, AfterValidator(_placeholders), AfterValidator(_one_line)]
Template = Annotated[str, AfterValidator(_fixed_placeholders), AfterValidator(_one_line)]
SourcePath = Annotated[RelativePath, AfterValidator(_fixed_placeholders), AfterValidator(_one_line)]
Licence = Annotated[str, AfterValidator(_text)]
PciId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}$")]


class PciMatch(Frozen):
    """PCI devices that a driver is for: hexadecimal ids as ``lspci -n`` prints them."""

    vendor: PciId
    devices: tuple[PciId, ...] = ()
    classes: tuple[PciId, ...] = ()

    def matches(self, *, vendor: str, device: str, device_class: str) -> bool:
        """Return whether a device is meant; an empty list of ids stands for any."""
        return (
            vendor == self.vendor
            and (not self.devices or device in self.devices)
            and (not self.classes or device_class in self.classes)
        )


class Hardware(Frozen):
    """What a driver is for."""

    pci: tuple[PciMatch, ...] = ()


class DebSource(Frozen):
    """Packages of the target distro's own archive, with versions from its signed index.

    Attributes:
        components: Sections of the archive that they are in, besides ``main``.
        userspace: Packages that are unpacked for ``files``, of the same version as the modules.
        companions: The same, but released on their own: their newest version is taken.
    """

    kind: Literal["deb"]
    components: tuple[Name, ...] = ()
    userspace: tuple[PackageName, ...] = ()
    companions: tuple[PackageName, ...] = ()


class ArchiveRelease(Frozen):
    """One released version as a tarball or zip file; ``strip``: leading path parts to drop."""

    version: Version
    url: Url
    sha256: Sha256
    strip: int = Field(default=1, ge=0)

    def source(self) -> ArchiveSource:
        """Return what goes into the Pin."""
        return ArchiveSource(url=self.url, sha256=self.sha256, strip=self.strip)


class GitRelease(Frozen):
    """One released version as a git commit; sha256 of ``git archive --format=tar COMMIT``."""

    version: Version
    url: Url
    commit: Commit
    sha256: Sha256

    def source(self) -> GitSource:
        """Return what goes into the Pin."""
        return GitSource(url=self.url, commit=self.commit, sha256=self.sha256)


class ArchiveReleases(Frozen):
    """A driver that its vendor publishes as files."""

    kind: Literal["archive"]
    releases: tuple[ArchiveRelease, ...] = Field(min_length=1)


class GitReleases(Frozen):
    """A driver that its vendor publishes as a git repository."""

    kind: Literal["git"]
    releases: tuple[GitRelease, ...] = Field(min_length=1)


RecipeSource = Annotated[DebSource | ArchiveReleases | GitReleases, Field(discriminator="kind")]


class KernelRange(Frozen):
    """Kernels that a driver is known to build on.

    Attributes:
        versions: Driver versions that this row is about; any, if it is empty.
        kernels: Base versions of kernel releases (the ``6.1.0`` of ``6.1.0-47-amd64``).
    """

    versions: Specifiers = ""
    kernels: Specifiers


class Build(Frozen):
    """How the modules are built, inside the unpacked source.

    Attributes:
        archive: A tarball in the source that holds the real tree.
        directory: Where the command runs, relative to the unpacked tree.
        packages: Build tools needed besides the compiler, make and the headers.
        command: Argument list; never a shell line.
        modules: The built files, relative to ``directory``.
    """

    archive: SourcePath | None = None
    directory: SourcePath = "."
    packages: tuple[PackageName, ...] = ()
    command: tuple[Argument, ...] = Field(min_length=1)
    modules: tuple[SourcePath, ...] = Field(min_length=1)


class Flavour(Frozen):
    """One way to build a driver (open or proprietary modules, …)."""

    default: bool = False
    licences: tuple[Licence, ...] = Field(min_length=1)
    package: PackageName | None = None
    build: Build


class Patch(Frozen):
    """A file under ``patches/``, applied with ``patch -p1`` where versions and flavours match."""

    # No longer than a tar file of the build context takes it, below patches/.
    file: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.patch$", max_length=90)
    ]
    versions: Specifiers = ""
    flavours: tuple[Name, ...] = ()
    reason: Annotated[str, StringConstraints(min_length=1)]

    def applies_to(self, *, version: str, flavour: str) -> bool:
        """Return whether a driver version and flavour need this patch."""
        return (not self.flavours or flavour in self.flavours) and version_matches(
            version, self.versions
        )


class UserFile(Frozen):
    """A user-space file: where it lies in the unpacked source, and where in a container.

    Attributes:
        source: Path in the unpacked source (key ``from``); may be a glob for firmware and
            miscellaneous files.
        to: Path in the container; with a final ``/`` the file keeps its name.
        links: Names of symbolic links to make beside it.
    """

    kind: FileKind
    source: Template = Field(alias="from")
    to: Template
    links: tuple[Template, ...] = ()
    features: tuple[FeatureName, ...] = ()

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


class InstalledFeature(Frozen):
    """What one feature consists of on a host that has the driver from elsewhere.

    Attributes:
        devices: As in ``container.features``.
        libraries: File names, in the folders for libraries; may be globs.
        binaries: File names, in the folders for programs; may be globs.
        miscellaneous: Paths, relative to the host's root; may be globs.
        bits: Which libraries count: 64, or 32 for those of the architecture's smaller sibling.
    """

    devices: tuple[str, ...] = ()
    libraries: tuple[Template, ...] = ()
    binaries: tuple[Template, ...] = ()
    miscellaneous: tuple[SourcePath, ...] = ()
    bits: Literal[32, 64] = 64


class Installed(Frozen):
    """How to recognise a driver that a host has from elsewhere: its distro, or its maker.

    Attributes:
        library: File name of a library that every installation has; with ``{version}``, which says
            what the version is.
        libraries: Folders for libraries, relative to the host's root; the first that has a file
            counts.
        binaries: Folders for programs.
        features: What there is to ask for.
    """

    library: Annotated[Template, StringConstraints(pattern=r"\{version\}")]
    libraries: tuple[SourcePath, ...] = Field(min_length=1)
    binaries: tuple[SourcePath, ...] = ("usr/bin", "usr/sbin")
    features: dict[FeatureName, InstalledFeature] = Field(min_length=1)


class Recipe(Frozen):
    """A driver.toml."""

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    summary: str
    vendor: str
    homepage: str
    hardware: Hardware = Hardware()
    source: RecipeSource
    kernels: tuple[KernelRange, ...] = Field(min_length=1)
    flavours: dict[Name, Flavour] = Field(min_length=1)
    patches: tuple[Patch, ...] = ()
    container: Container
    files: tuple[UserFile, ...] = ()
    host: HostNeeds = HostNeeds()
    installed: Installed | None = None
    upstream: Upstream = Upstream()

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    @property
    def default_flavour(self) -> str:
        """The flavour that is built when none is named."""
        marked = [name for name, flavour in self.flavours.items() if flavour.default]
        return marked[0] if marked else next(iter(self.flavours))

    def builds_on(self, *, version: str, kernel_release: str) -> bool:
        """Return whether a driver version is known to build on a kernel."""
        base = kernel_release.split("-", 1)[0]
        return any(
            version_matches(version, row.versions) and version_matches(base, row.kernels)
            for row in self.kernels
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = [*self._flavour_problems(), *self._feature_problems()]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _flavour_problems(self) -> list[str]:
        problems = []
        if sum(flavour.default for flavour in self.flavours.values()) > 1:
            problems.append("more than one flavour is marked as default")
        for name, flavour in self.flavours.items():
            if isinstance(self.source, DebSource) != (flavour.package is not None):
                problems.append(
                    f"flavours.{name}.package must be given exactly when source.kind is 'deb'"
                )
        for patch in self.patches:
            problems += [
                f"patch {patch.file} names the unknown flavour '{name}'"
                for name in patch.flavours
                if name not in self.flavours
            ]
        return problems

    def _feature_problems(self) -> list[str]:
        known = self.container.features
        wanted = [("container.driver_feature", f) for f in self.container.driver_feature]
        lacking = [
            f"installed.features lacks '{feature}', which container.driver_feature names"
            for feature in self.container.driver_feature
            if self.installed is not None and feature not in self.installed.features
        ]
        wanted += [(f"files {file.source}", f) for file in self.files for f in file.features]
        unknown = [
            f"{where} names the feature '{feature}', which container.features lacks"
            for where, feature in wanted
            if feature not in known
        ]
        return [*unknown, *lacking]


def version_matches(version: str, specifiers: str) -> bool:
    """Return whether a version satisfies specifiers; a version that has no PEP 440 form does not.

    Source: https://packaging.python.org/en/latest/specifications/version-specifiers/
    """
    if not specifiers:
        return True
    try:
        return SpecifierSet(specifiers).contains(PepVersion(version), prereleases=True)
    except InvalidVersion:
        return False
