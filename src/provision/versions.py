"""Which versions of a driver its source offers, for a distro."""

from __future__ import annotations

from collections.abc import Iterable

from provision.archive import ArchiveIndex, IndexedPackage, upstream_version, version_key
from provision.recipe import DebSource, Recipe


def offered_versions(recipe: Recipe, flavour: str, index: ArchiveIndex | None) -> list[str]:
    """Return the versions that can be built, the newest first.

    Args:
        recipe: The driver's recipe.
        flavour: One of its flavours.
        index: Archive of the distro that is built for; None: it has none of Debian's kind.
    """
    if isinstance(recipe.source, DebSource):
        if index is None:
            return []
        package = recipe.flavours[flavour].package
        found = index.versions(package) if package else []
        return list(dict.fromkeys(driver_version(candidate) for candidate in found))
    return newest_first(release.version for release in recipe.source.releases)


def driver_version(package: IndexedPackage) -> str:
    """Return the upstream part of a package's version: no epoch, no Debian revision."""
    return upstream_version(package.version)


def package_of_version(index: ArchiveIndex, name: str, version: str) -> IndexedPackage | None:
    """Return the newest package of a name whose upstream version is the given one."""
    return next((p for p in index.versions(name) if driver_version(p) == version), None)


def newest_first(versions: Iterable[str]) -> list[str]:
    """Return versions in Debian's order, the newest first, each once."""
    return sorted(set(versions), key=version_key, reverse=True)
