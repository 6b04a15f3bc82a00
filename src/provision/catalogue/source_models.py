"""The sources of a driver in its recipe: a model for each kind.

``provision.sources`` has the behaviour of each kind.
"""

import shlex
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from provision.catalogue.fields import (
    Argument,
    DistroPattern,
    FileName,
    PublicFileUrl,
    PublicRepositoryUrl,
    SourcePath,
    Specifiers,
    TargetPath,
    UrlTemplate,
    public,
    version_matches,
)
from provision.documents import Frozen, like
from provision.errors import ProvisionError
from provision.manifest import ContainerFeature, FeatureName, FileKind
from provision.pin import (
    Architecture,
    ArchiveSource,
    Commit,
    GitSource,
    GitSubmodule,
    Name,
    PackageName,
    Sha256,
    Version,
)


class ArchiveRelease(Frozen):
    """One released version as a file; ``strip``: leading path parts to drop.

    Attributes:
        version: The driver's version.
        url: Tarball, zip file or Debian package (``.deb``; zstd needs ``zstd`` among ``packages``):
            ``http``, ``https``, ``file:///`` or an absolute path on the machine that builds.
        sha256: Checksum of the file.
        strip: Leading parts to drop from the paths inside.
    """

    version: Version
    url: PublicFileUrl
    sha256: Sha256
    strip: int = Field(default=1, ge=0)

    def source(self) -> ArchiveSource:
        """Return what goes into the Pin."""
        return ArchiveSource(url=self.url, sha256=self.sha256, strip=self.strip)


# Returns the commit that a tag or branch of a repository names, and the checksum of its archive.
CommitAt = Callable[[str, str], tuple[str, str]]


def no_commit_at(url: str, ref: str) -> tuple[str, str]:
    """Refuse to ask a repository: for callers that only list what is offered."""
    raise ProvisionError(
        f"The commit of '{ref}' would have to be asked for at '{url}'.",
        resolution=f"Look it up: git ls-remote {shlex.quote(url)}",
    )


# Nothing that a pattern of git's or an option begins with.
Ref = Annotated[str, like(r"^[A-Za-z0-9_][A-Za-z0-9_+#@=./-]*$", "v1.2", max_length=200)]


def _public_submodule(module: GitSubmodule) -> GitSubmodule:
    public(module.url)
    return module


PublicSubmodule = Annotated[GitSubmodule, AfterValidator(_public_submodule)]


class GitRelease(Frozen):
    """One released version as a git commit, or as a tag or branch that names one.

    Attributes:
        version: The driver's version.
        url: ``https``, ``http``, ``ssh://``, ``git@HOST:PATH``, ``file:///`` or an absolute path on
            the machine that builds.
        commit: 40 hexadecimal digits; tags and branches move. Without it: ``ref``.
        sha256: Checksum of ``git archive --format=tar COMMIT``. Without it: ``ref``.
        ref: A tag or a branch, in place of ``commit`` and ``sha256``, which the Pin then holds.
            Without it: ``commit``.
        submodules: A table for each one that the build needs, see below.
    """

    version: Version
    url: PublicRepositoryUrl
    commit: Commit | None = None
    sha256: Sha256 | None = None
    ref: Ref | None = None
    submodules: tuple[PublicSubmodule, ...] = ()

    def source(self, commit_at: CommitAt = no_commit_at) -> GitSource:
        """Return what goes into the Pin; ``commit_at`` is asked what a ``ref`` names."""
        commit, sha256 = self.commit, self.sha256
        if self.ref is not None:
            commit, sha256 = commit_at(self.url, self.ref)
        return GitSource.model_validate(
            {"url": self.url, "commit": commit, "sha256": sha256, "submodules": self.submodules}
        )

    @model_validator(mode="after")
    def _commit_or_ref(self) -> Self:
        if (self.ref is None) != (self.commit is not None and self.sha256 is not None) or (
            self.ref is not None and (self.commit or self.sha256)
        ):
            raise ValueError("give either 'commit' and 'sha256', or 'ref'")
        return self

    @model_validator(mode="after")
    def _folders_apart(self) -> Self:
        paths = sorted(module.path for module in self.submodules)
        for before, after in pairwise(paths):
            if f"{after}/".startswith(f"{before}/"):
                raise ValueError(f"two submodules fill the folder '{after}'")
        return self


class RunfileRelease(Frozen):
    """One released version as a ``.run``.

    Attributes:
        version: The driver's version.
        architecture: Architecture that ``sha256`` is for.
        url: As in the source. Without it: that of the source.
        sha256: Checksum of the file. Without it: the vendor's, [as first
            seen](../decisions/05-pins-and-builds.md).
        checksums: As in the source. Without it: that of the source.
    """

    version: Version
    architecture: Architecture = "x86_64"
    url: UrlTemplate | None = None
    sha256: Sha256 | None = None
    checksums: UrlTemplate | None = None


def _release(value: object) -> str:
    is_git = isinstance(value, GitRelease) or (
        isinstance(value, dict) and not {"commit", "ref"}.isdisjoint(value)
    )
    return "<commit>" if is_git else "<file>"


# A file or a commit; messages don't show the names in angle brackets.
AnyRelease = Annotated[
    Annotated[ArchiveRelease, Tag("<file>")] | Annotated[GitRelease, Tag("<commit>")],
    Discriminator(_release),
]


class Build(Frozen):
    """How the modules are built, inside the unpacked source.

    Attributes:
        package: Kind ``deb``: the package that has the source; its version is the driver's.
        archive: A tarball inside the source with the real tree.
        directory: Where the command runs, relative to the unpacked tree.
        packages: Build tools besides compiler, make and headers.
        command: List of arguments; no shell reads it.
        modules: The built files, relative to ``directory``; may be globs.
    """

    package: PackageName | None = None
    archive: SourcePath | None = None
    directory: SourcePath = "."
    packages: tuple[PackageName, ...] = ()
    command: tuple[Argument, ...] = Field(min_length=1)
    modules: tuple[SourcePath, ...] = Field(min_length=1)


class UserFile(Frozen):
    """A user-space file: where it lies in the unpacked source, and where in a container.

    Attributes:
        kind: ``library``, ``binary``, ``miscellaneous``, or ``firmware``, which stays on the host.
        source: Path in the unpacked source; may be a glob.
        to: Absolute path in the container; after a final ``/``, the file keeps its name.
        links: Names of links beside it; the one for a SONAME is made without an entry.
        features: Features that need it. Without it: for the host only.
    """

    kind: FileKind
    source: SourcePath = Field(alias="from")
    to: TargetPath
    links: tuple[FileName, ...] = ()
    features: tuple[FeatureName, ...] = ()

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


class Source(Frozen):
    """The common keys of all kinds of sources.

    Attributes:
        name: What patches and messages call it; None: its kind.
        distros: What it serves: ids of os-release (``debian``), releases (``debian:12``) or
            families (``apt``), as globs; empty: any.
        versions: Driver versions that it serves; empty: any.
        build: How each flavour is built from it, where that differs from the recipe's
            ``[flavours.NAME.build]``.
        files: Its user space; None: the recipe's ``[[files]]``.
        features: Features that its files bring besides those of ``[container.features]``.
    """

    name: Name | None = None
    distros: tuple[DistroPattern, ...] = ()
    versions: Specifiers = ""
    build: dict[Name, Build] = Field(default_factory=dict)
    files: tuple[UserFile, ...] | None = None
    features: dict[FeatureName, ContainerFeature] = Field(default_factory=dict)

    @property
    def takes_any_version(self) -> bool:
        """Whether it serves versions that it doesn't list."""
        return False

    def build_of(self, flavour: str) -> Build | None:
        """Return its own build of a flavour; None if the recipe's build applies.

        A source that describes its own build returns that.
        """
        return self.build.get(flavour)

    @property
    def is_packaged(self) -> bool:
        """Whether it consists of packages in a Debian-style archive."""
        return False

    def fits(self, distro: Collection[str], version: str | None = None) -> bool:
        """Return whether it serves a distro, and a version of the driver.

        Args:
            distro: The distro's names: id, ``id:version`` and family.
        """
        is_served = not self.distros or any(
            fnmatchcase(name, pattern) for pattern in self.distros for name in distro
        )
        return is_served and (version is None or version_matches(version, self.versions))


class DebSource(Source):
    """Packages of the target distro's own archive, with versions from its signed index.

    Attributes:
        components: Components of the archive besides ``main``: ``contrib``, ``non-free``, ….
        userspace: Packages for ``files``, unpacked and never installed, of the modules' upstream
            version.
        companions: Extra packages, unpacked too, in their newest version, because their vendor
            releases them separately.
    """

    kind: Literal["deb"]
    components: tuple[Name, ...] = ()
    userspace: tuple[PackageName, ...] = ()
    companions: tuple[PackageName, ...] = ()

    @property
    def is_packaged(self) -> bool:
        """Always True."""
        return True


class ArchiveReleases(Source):
    """A driver that its vendor publishes as files."""

    kind: Literal["archive"]
    releases: tuple[ArchiveRelease, ...] = Field(min_length=1)


class GitReleases(Source):
    """A driver that its vendor publishes as a git repository."""

    kind: Literal["git"]
    releases: tuple[GitRelease, ...] = Field(min_length=1)


class RunfileReleases(Source):
    """NVIDIA's self-extracting files; user space and its features come from the list inside.

    Attributes:
        url: Address of a version, with ``{version}`` and ``{arch}`` (``x86_64``, ``aarch64``).
        checksums: Address of the vendor's checksum, for versions without ``sha256``: as
            ``sha256sum`` prints it; ``https`` only, because
            nothing else authenticates it.
        leave_out: File types (the third word of a line in the list inside) that go into no
            container; required for a list with an unknown type.
        releases: The offered versions. With ``url`` and ``checksums``, ``--version`` takes any
            other, and those that sources of [``[upstream]``](#upstream) with ``files = true`` name
            are offered too.
    """

    kind: Literal["runfile"]
    url: UrlTemplate | None = None
    checksums: UrlTemplate | None = None
    leave_out: tuple[Annotated[str, like(r"^[A-Z0-9_]+$", "NVLIB_TYPE")], ...] = ()
    releases: tuple[RunfileRelease, ...] = ()

    @property
    def takes_any_version(self) -> bool:
        """Whether unlisted versions are served: both addresses are known."""
        return self.url is not None and self.checksums is not None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        problems = []
        if not self.releases and not self.takes_any_version:
            problems.append("give 'releases', or both 'url' and 'checksums'")
        for release in self.releases:
            if release.url is None and self.url is None:
                problems.append(f"the release {release.version} has no 'url', and neither has this")
            if release.sha256 is None and release.checksums is None and self.checksums is None:
                problems.append(
                    f"the release {release.version} has neither 'sha256' nor 'checksums'"
                )
        if problems:
            raise ValueError("; ".join(problems))
        return self


# Debian's packages that fetch a commit in the build.
GIT_TOOLS = ("ca-certificates", "git")
# The command of every build from a dkms.conf: templates/dkms/dkms.bash evaluates that file.
_DKMS_COMMAND = ("bash", "/provision/dkms.bash", "build", "{kernel}", "{machine}", "{jobs}")


class DkmsSource(Source):
    """A source with a ``dkms.conf``, which says how it is built, and for which kernels.

    It is a package of the distro that is built for, or releases of the vendor.

    Attributes:
        package: The distro's package that has the source; its version is the driver's.
        components: As in ``DebSource``.
        userspace: As in ``DebSource``.
        companions: As in ``DebSource``.
        releases: Files or commits of the vendor, where there is no ``package``.
        directory: The folder that has the dkms.conf; by default the unpacked source, or the one
            folder below its ``usr/src`` that has one.
        packages: Build tools needed besides the compiler, make and the headers.
    """

    kind: Literal["dkms"]
    package: PackageName | None = None
    components: tuple[Name, ...] = ()
    userspace: tuple[PackageName, ...] = ()
    companions: tuple[PackageName, ...] = ()
    releases: tuple[AnyRelease, ...] = ()
    directory: SourcePath = "."
    packages: tuple[PackageName, ...] = ()

    @property
    def is_packaged(self) -> bool:
        """Whether it is a package and not releases."""
        return self.package is not None

    def build_of(self, flavour: str) -> Build | None:
        """Return the build of any flavour, which follows the dkms.conf."""
        del flavour
        has_commits = any(isinstance(release, GitRelease) for release in self.releases)
        return Build(
            directory=self.directory,
            packages=(*self.packages, *(GIT_TOOLS if has_commits else ())),
            command=_DKMS_COMMAND,
            modules=("dkms-modules/*.ko",),
        )

    @model_validator(mode="after")
    def _package_or_releases(self) -> Self:
        if (self.package is None) == (not self.releases):
            raise ValueError("give either 'package' or 'releases'")
        if self.package is None and (self.components or self.userspace or self.companions):
            raise ValueError("components, userspace and companions need a 'package'")
        if self.build:
            raise ValueError("the dkms.conf says how it is built: leave 'build' out")
        return self


RecipeSource = Annotated[
    DebSource | ArchiveReleases | GitReleases | DkmsSource | RunfileReleases,
    Field(discriminator="kind"),
]


def _shape(value: object) -> str:
    return "<table>" if isinstance(value, dict | Source) else "<list>"


# [source], or [[source]] once or more; messages don't show the names in angle brackets.
OneOrSeveral = Annotated[
    Annotated[RecipeSource, Tag("<table>")]
    | Annotated[tuple[RecipeSource, ...], Field(min_length=1), Tag("<list>")],
    Discriminator(_shape),
]
