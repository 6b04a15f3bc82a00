"""The kinds of sources: ``deb``, ``archive``, ``git``, ``dkms`` and ``runfile``.

``deb`` takes packages of the distro's own archive. ``archive`` and ``git`` take a vendor's
releases, which the recipe lists. ``dkms`` is one of these with a dkms.conf. ``runfile`` takes
NVIDIA's self-extracting files, by address and checksum; ``provision.sources.repack`` takes them
apart.
"""

from __future__ import annotations

from typing import Any

from provision.catalogue import (
    ArchiveReleases,
    DebSource,
    DkmsSource,
    GitReleases,
    RunfileRelease,
    RunfileReleases,
    Variant,
)
from provision.distros.debian import ArchiveIndex, IndexedPackage, upstream_version
from provision.distros.family import fill
from provision.documents import refusing
from provision.errors import NotFoundError
from provision.pin import PackageSource, RunfileSource, Source
from provision.sources.market import Market, Pinned, SourceKind, newest_first

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
