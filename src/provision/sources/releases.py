"""The kinds ``archive`` and ``git``: a vendor's releases, which the recipe lists."""

from __future__ import annotations

from provision.catalogue import ArchiveReleases, GitReleases, Variant
from provision.distros.debian import ArchiveIndex
from provision.pin import Source
from provision.sources.kind import Market, Pinned, newest_first

_Listed = Variant[ArchiveReleases | GitReleases]


class Releases:
    """Releases that a recipe lists, each a file or a commit.

    Args:
        tools: What unpacking one needs.
    """

    def __init__(self, tools: tuple[str, ...] = ()) -> None:
        self._tools = tools

    @property
    def tools(self) -> tuple[str, ...]:
        """Packages that unpacking needs."""
        return self._tools

    def versions(self, variant: _Listed, _index: ArchiveIndex | None) -> list[str]:
        """Return the listed versions."""
        return newest_first(release.version for release in variant.source.releases)

    def components(self, _source: ArchiveReleases | GitReleases) -> tuple[str, ...]:
        """Return none: they are in no archive of a distro."""
        return ()

    def absence(self, variant: _Listed, _index: ArchiveIndex | None) -> str:
        """Return why nothing is offered."""
        return f"the recipe lists no release for the source '{variant.label}'"

    def pin(self, _driver: str, variant: _Listed, version: str, _market: Market) -> Pinned:
        """Return what the recipe says of a version."""
        releases = variant.source.releases
        return Pinned(tuple(r.source() for r in releases if r.version == version))

    def is_user_space(self, _variant: _Listed, _source: Source) -> bool:
        """Return False: user space is built, or comes with the rest."""
        return False
