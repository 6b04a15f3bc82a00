"""The market of a driver's sources: what is asked for, and the protocol of the kinds that answer.

Pure: a kind of source starts no process and uses no network. One rule says which versions a request
accepts, for archives, registries and the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from provision.catalogue import Variant
from provision.distros.debian import ArchiveIndex, version_key
from provision.errors import ProvisionError
from provision.pin import Source

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
