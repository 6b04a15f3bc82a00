"""The kind ``deb``: packages of the distro's own archive."""

from __future__ import annotations

from provision.catalogue import DebSource, Variant
from provision.distros.debian import ArchiveIndex, IndexedPackage, upstream_version
from provision.documents import refusing
from provision.errors import NotFoundError
from provision.pin import PackageSource, Source
from provision.sources.kind import Market, Pinned


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
        """Return the packages with a version's source and user space.

        Raises:
            NotFoundError: A package is missing or has another version.
        """
        index = market.index
        if index is None:
            raise NotFoundError(f"{market.distro} has no archive: {self.absence(variant, None)}.")
        source = variant.source
        names = dict.fromkeys([str(variant.package), *source.userspace])
        found = {name: package_of_version(index, name, version) for name in names}
        missing = [name for name, package in found.items() if package is None]
        if missing:
            raise _other_version(driver, version, missing, index)
        found |= {name: index.package(name) for name in source.companions}
        missing = [name for name, package in found.items() if package is None]
        if missing:
            raise _missing(missing, index)
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
    """Return the error for user space of another version than the modules."""
    absent = [name for name in names if index.package(name) is None]
    if absent:
        return _missing(absent, index)
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


def _missing(names: list[str], index: ArchiveIndex) -> NotFoundError:
    return NotFoundError(
        f"The archive of {_distro(index)} has no package {', '.join(names)}"
        f" for {index.architecture}.",
        resolution="Check the name; if it is in another component of the archive, add that to"
        " 'components' in driver.toml.",
        details="\n".join(["looked in:", *(f"  {place}" for place in index.addresses)]),
    )


def _distro(index: ArchiveIndex) -> str:
    return f"{index.distro.id}:{index.distro.version}"
