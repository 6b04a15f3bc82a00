"""The kinds of sources: ``deb``, ``archive``, ``git``, ``dkms`` and ``runfile``.

``deb`` takes packages of the distro's own archive. ``archive`` and ``git`` take a vendor's
releases, which the recipe lists. ``dkms`` is one of these with a dkms.conf. ``runfile`` takes
NVIDIA's self-extracting files, by address and checksum; ``provision.sources.runfile`` takes them
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from provision.catalogue import (
    ArchiveReleases,
    DebSource,
    DkmsSource,
    GitReleases,
    RunfileRelease,
    RunfileReleases,
    Variant,
)
from provision.distros.debian import ArchiveIndex, IndexedPackage, upstream_version, version_key
from provision.distros.family import fill
from provision.documents import refusing
from provision.errors import NotFoundError, ProvisionError
from provision.pin import PackageSource, RunfileSource, Source

SourceT_contra = TypeVar("SourceT_contra", contravariant=True)


PublishedSum = Callable[[str, str], str]


def no_published_sum(url: str, sums: str) -> str:
    """Refuse to ask for a vendor's checksums: for callers that only list what is offered."""
    raise ProvisionError(
        f"The checksum of '{url}' would have to be asked for at '{sums}'.",
        resolution=f"Look it up: curl {sums}",
    )


@dataclass(frozen=True, slots=True)
class Market:
    """The context in which a distro's driver sources are looked up.

    Attributes:
        names: Its names in recipes: id, ``id:version`` and family.
        index: Its archive; None if it has no Debian-style archive.
        published_sum: Returns the sha256 that a vendor publishes for a file, given the addresses
            of the file and of the checksums.
        published: Versions that the vendor has files for, for sources that serve any version.
    """

    distro: str
    names: tuple[str, ...]
    index: ArchiveIndex | None = None
    architecture: str = "x86_64"
    published_sum: PublishedSum = no_published_sum
    published: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pinned:
    """The parts of a version of a driver.

    Attributes:
        urls: Addresses by sha256, for files whose address is not in the Pin.
    """

    sources: tuple[Source, ...]
    urls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class SourceKind(Protocol[SourceT_contra]):
    """A kind of source: its versions, its part of a Pin, and its needs in a build.

    A macro in ``templates/macros/source.j2`` unpacks it.
    """

    @property
    def tools(self) -> tuple[str, ...]:
        """Packages, by Debian's names, that unpacking needs besides those of every build."""

    def versions(self, variant: Variant[SourceT_contra], index: ArchiveIndex | None) -> list[str]:
        """Return all existing versions, the newest first, served by the recipe or not."""

    def components(self, source: SourceT_contra) -> tuple[str, ...]:
        """Return the components of a distro's archive that it needs besides ``main``."""

    def absence(self, variant: Variant[SourceT_contra], index: ArchiveIndex | None) -> str:
        """Return the reason for having no versions, as the end of a sentence."""

    def pin(
        self, driver: str, variant: Variant[SourceT_contra], version: str, market: Market
    ) -> Pinned:
        """Return the parts of a version."""

    def is_user_space(self, variant: Variant[SourceT_contra], source: Source) -> bool:
        """Return whether a part is unpacked only after the modules are built."""


def newest_first(versions: Iterable[str]) -> list[str]:
    """Return versions in Debian's order, the newest first, each once."""
    return sorted(set(versions), key=version_key, reverse=True)


@dataclass(frozen=True, slots=True)
class VersionRequest:
    """The version of a driver that is asked for.

    Attributes:
        name: A version; or a branch (``535``, ``0.12``), which stands for its newest version; or a
            kind of branch (``lts``); None: the newest version of all.
        branches: The branches that are of the kind that ``name`` names, in the order of
            preference; None: it names none.
        prefer: A version to stay with, as long as it is there and fits.
    """

    name: str | None = None
    branches: tuple[str, ...] | None = None
    prefer: str | None = None

    @property
    def exact(self) -> str | None:
        """The name, where it may be a whole version; None without one, or for a kind."""
        return self.name if self.branches is None else None

    def accepts(self, version: str) -> bool:
        """Return whether a version is one of those that are asked for."""
        return any(True for _ in self.accepted((version,)))

    def accepted(self, versions: Iterable[str]) -> list[str]:
        """Return the versions that are asked for, by branch, else in the order in which they come.

        The version to stay with has no say in that.
        """
        there = list(versions)
        if self.name is None:
            return there
        branches = (self.name,) if self.branches is None else self.branches
        return [version for branch in branches for version in there if is_of(version, branch)]


def is_of(version: str, branch: str) -> bool:
    """Return whether a version belongs to a branch: ``535.261.03`` to ``535`` and ``535.261``."""
    return version == branch or version.startswith(f"{branch}.")


_Listed = Variant[ArchiveReleases | GitReleases]
# The script that evaluates the dkms.conf in the build container, and builds.
SCRIPT = "dkms.bash"
# The architectures that NVIDIA publishes files for.
_ARCHITECTURES = ("x86_64", "aarch64")
_RunfileVariant = Variant[RunfileReleases]


class Deb:
    """A driver's source in one package, and its user space in others."""

    @property
    def tools(self) -> tuple[str, ...]:
        """None: distros with such packages have dpkg-deb."""
        return ()

    def versions(self, variant: Variant[DebSource], index: ArchiveIndex | None) -> list[str]:
        """Return the upstream versions of the package that has the source."""
        if index is None or variant.package is None:
            return []
        found = index.versions(variant.package)
        return list(dict.fromkeys(driver_version(candidate) for candidate in found))

    def components(self, source: DebSource) -> tuple[str, ...]:
        """Return the components that the recipe names."""
        return tuple(sorted(set(source.components) - {"main"}))

    def absence(self, variant: Variant[DebSource], index: ArchiveIndex | None) -> str:
        """Return the reason for having no versions."""
        if index is None:
            return f"its source is the package {variant.package} of Debian's archive"
        return f"there is no package {variant.package}"

    def pin(self, driver: str, variant: Variant[DebSource], version: str, market: Market) -> Pinned:
        """Return the packages with a version's source and user space."""
        index = market.index
        if index is None:
            raise NotFoundError(
                f"{market.distro} has no archive: {self.absence(variant, None)}.",
                resolution="Add a [[source]] for this distro to driver.toml,"
                " or name another distro (--distro).",
            )
        source = variant.source
        names = dict.fromkeys([str(variant.package), *source.userspace])
        found = {name: package_of_version(index, name, version) for name in names}
        missing = [name for name, package in found.items() if package is None]
        if missing:
            raise _other_version(driver, version, missing, index)
        found |= {name: index.package(name) for name in source.companions}
        missing = [name for name, package in found.items() if package is None]
        if missing:
            raise _missing_package(missing, index)
        packages = [package for package in found.values() if package is not None]
        return Pinned(
            tuple(map(_pinned, packages)), {package.sha256: (package.url,) for package in packages}
        )

    def is_user_space(self, variant: Variant[DebSource], source: Source) -> bool:
        """Return whether a package is not the one with the modules' source."""
        return not (isinstance(source, PackageSource) and source.name == variant.package)


def driver_version(package: IndexedPackage) -> str:
    """Return the upstream part of a package's version: no epoch, no Debian revision."""
    return upstream_version(package.version)


def package_of_version(index: ArchiveIndex, name: str, version: str) -> IndexedPackage | None:
    """Return the newest package of a name whose upstream version is the given one."""
    return next((p for p in index.versions(name) if driver_version(p) == version), None)


def _pinned(package: IndexedPackage) -> PackageSource:
    with refusing(f"The package {package.name} {package.version} can't be pinned."):
        return PackageSource(name=package.name, version=package.version, sha256=package.sha256)


def _other_version(
    driver: str, version: str, names: list[str], index: ArchiveIndex
) -> NotFoundError:
    absent = [name for name in names if index.package(name) is None]
    if absent:
        return _missing_package(absent, index)
    there = {
        name: ", ".join(driver_version(package) for package in index.versions(name))
        for name in names
    }
    return NotFoundError(
        f"The archive of {_distro(index)} has no user space of '{driver}' {version}: modules"
        " and libraries must be of one version.",
        resolution="Take a version that all of them have (--version), or another flavour"
        " (--flavour).",
        details="\n".join(f"{name}: {versions}" for name, versions in there.items()),
    )


def _missing_package(names: list[str], index: ArchiveIndex) -> NotFoundError:
    return NotFoundError(
        f"The archive of {_distro(index)} has no package {', '.join(names)}"
        f" for {index.architecture}.",
        resolution="Check the name; if it is in another component of the archive, add that to"
        " 'components' in driver.toml.",
        details="\n".join(["looked in:", *(f"  {place}" for place in index.addresses)]),
    )


def _distro(index: ArchiveIndex) -> str:
    return f"{index.distro.id}:{index.distro.version}"


class Releases:
    """Releases that a recipe lists, each a file or a commit."""

    def __init__(self, tools: tuple[str, ...] = ()) -> None:
        self._tools = tools

    @property
    def tools(self) -> tuple[str, ...]:
        """The packages that unpacking needs."""
        return self._tools

    def versions(self, variant: _Listed, _index: ArchiveIndex | None) -> list[str]:
        """Return the listed versions."""
        return newest_first(release.version for release in variant.source.releases)

    def components(self, _source: ArchiveReleases | GitReleases) -> tuple[str, ...]:
        """Return no components: releases are in no distro's archive."""
        return ()

    def absence(self, variant: _Listed, _index: ArchiveIndex | None) -> str:
        """Return the reason for having no versions."""
        return f"the recipe lists no release for the source '{variant.label}'"

    def pin(self, _driver: str, variant: _Listed, version: str, _market: Market) -> Pinned:
        """Return the recipe's release of a version."""
        releases = variant.source.releases
        return Pinned(tuple(r.source() for r in releases if r.version == version))

    def is_user_space(self, _variant: _Listed, _source: Source) -> bool:
        """Return False: user space is built, or comes with the rest."""
        return False


class Dkms:
    """A package or release with a dkms.conf; it behaves as the kind ``deb`` or ``archive``."""

    @property
    def tools(self) -> tuple[str, ...]:
        """None: a build with commits has the tools for them among its packages."""
        return ()

    def versions(self, variant: Variant[DkmsSource], index: ArchiveIndex | None) -> list[str]:
        """Return the versions of the package, or the listed ones."""
        return _had_as(variant.source).versions(variant, index)

    def components(self, source: DkmsSource) -> tuple[str, ...]:
        """Return the components that the recipe names."""
        return tuple(sorted(set(source.components) - {"main"}))

    def absence(self, variant: Variant[DkmsSource], index: ArchiveIndex | None) -> str:
        """Return the reason for having no versions."""
        return _had_as(variant.source).absence(variant, index)

    def pin(
        self, driver: str, variant: Variant[DkmsSource], version: str, market: Market
    ) -> Pinned:
        """Return the packages or the release; errors as the kinds ``deb`` and ``archive``."""
        return _had_as(variant.source).pin(driver, variant, version, market)

    def is_user_space(self, variant: Variant[DkmsSource], source: Source) -> bool:
        """Return whether it is a package without the modules' source."""
        return _had_as(variant.source).is_user_space(variant, source)


def _had_as(source: DkmsSource) -> SourceKind[Any]:
    """Return the kind that a source with a dkms.conf comes as: a package, or a release."""
    return Deb() if source.is_packaged else Releases()


class Runfile:
    """Releases that a recipe lists, or that its addresses can be filled in for."""

    @property
    def tools(self) -> tuple[str, ...]:
        """None: the files are taken apart before a build."""
        return ()

    def versions(self, variant: _RunfileVariant, _index: ArchiveIndex | None) -> list[str]:
        """Return the listed versions."""
        return newest_first(release.version for release in variant.source.releases)

    def components(self, _source: RunfileReleases) -> tuple[str, ...]:
        """Return no components: the files are in no distro's archive."""
        return ()

    def absence(self, variant: _RunfileVariant, _index: ArchiveIndex | None) -> str:
        """Return the reason for having no versions."""
        return (
            f"the recipe lists no release for the source '{variant.label}'; ask for a version by"
            " name (--version)"
        )

    def pin(self, driver: str, variant: _RunfileVariant, version: str, market: Market) -> Pinned:
        """Return the file of a version."""
        source, architecture = variant.source, market.architecture
        if architecture not in _ARCHITECTURES:
            raise NotFoundError(
                f"There is no .run of '{driver}' {version} for {architecture}.",
                resolution=f"There are files for {', '.join(_ARCHITECTURES)}.",
            )
        release = _release(source, version, architecture)
        filled = {"version": version, "arch": architecture}
        url = fill(release.url or source.url or "", filled)
        sha256 = release.sha256
        if sha256 is not None and release.architecture != architecture:
            raise NotFoundError(
                f"The recipe of '{driver}' has {version} for {release.architecture} only, and this"
                f" is {architecture}.",
                resolution="Add a release with that architecture's sha256 to its driver.toml.",
            )
        if sha256 is None:
            sums = fill(release.checksums or source.checksums or "", filled)
            sha256 = market.published_sum(url, sums)
        with refusing(f"The file of '{driver}' {version} can't be pinned."):
            pinned = RunfileSource.model_validate(
                {
                    "url": url,
                    "sha256": sha256,
                    "version": version,
                    "architecture": architecture,
                    "leave_out": source.leave_out,
                }
            )
        return Pinned((pinned,))

    def is_user_space(self, _variant: _RunfileVariant, _source: Source) -> bool:
        """Return False: only the modules' source is unpacked; user space is a layer."""
        return False


def _release(source: RunfileReleases, version: str, architecture: str) -> RunfileRelease:
    """Return the recipe's release of a version, preferably for this architecture."""
    same = [release for release in source.releases if release.version == version]
    fitting = [release for release in same if release.architecture == architecture]
    return (fitting or same or [RunfileRelease(version=version)])[0]
