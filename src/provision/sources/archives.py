"""The kinds ``archive``, ``git`` and ``dkms``: a vendor's releases, which the recipe lists."""

from __future__ import annotations

from typing import Any

from provision.catalogue import ArchiveReleases, DkmsSource, GitReleases, Variant
from provision.distros.debian import ArchiveIndex
from provision.pin import Source
from provision.sources.deb import Deb
from provision.sources.kind import Market, Pinned, SourceKind, newest_first

_Listed = Variant[ArchiveReleases | GitReleases]
# Evaluates the dkms.conf in the build container and builds what it describes.
SCRIPT = "dkms.bash"
_PACKAGED: SourceKind[Any] = Deb()


class Releases:
    """Releases that a recipe lists, each a file or a commit.

    Args:
        tools: What unpacking one needs.
    """

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


_RELEASED: SourceKind[Any] = Releases()


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
    return _PACKAGED if source.is_packaged else _RELEASED
