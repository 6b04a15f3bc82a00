"""What is asked of a kind of source. Pure: a kind starts nothing and reads no network."""

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
    """Refuse to ask for a vendor's sums: for callers that only want to know what is offered.

    Raises:
        ProvisionError: Always.
    """
    raise ProvisionError(f"The checksum of '{url}' would have to be asked for at '{sums}'.")


@dataclass(frozen=True, slots=True)
class Market:
    """Where the sources of a distro's drivers are looked for.

    Attributes:
        distro: The distro, as messages call it: ``debian 12``.
        names: What recipes call it: its id, ``id:version`` and family.
        index: Its archive; None: it has none of Debian's kind.
        architecture: Of the machine, as ``uname -m`` prints it.
        published_sum: Returns the sha256 that a vendor published of a file: from the file's
            address and the address of the sums.
        published: Versions whose files their vendor has, for sources that take any version.
    """

    distro: str
    names: tuple[str, ...]
    index: ArchiveIndex | None = None
    architecture: str = "x86_64"
    published_sum: PublishedSum = no_published_sum
    published: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a version of a driver consists of.

    Attributes:
        sources: For the Pin.
        urls: Addresses of those files whose address is no part of the Pin, by sha256.
    """

    sources: tuple[Source, ...]
    urls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class SourceKind(Protocol[SourceT_contra]):
    """One kind of source: what it offers, what it pins, and how a build takes it.

    How it is unpacked is a macro of its Pin's kind in ``templates/macros/source.j2``.
    """

    @property
    def tools(self) -> tuple[str, ...]:
        """Packages, by Debian's names, that unpacking needs besides those of every build."""

    def versions(self, variant: Variant[SourceT_contra], index: ArchiveIndex | None) -> list[str]:
        """Return the versions that there are, the newest first, whatever the recipe serves."""

    def components(self, source: SourceT_contra) -> tuple[str, ...]:
        """Return the components of a distro's archive that it needs besides ``main``."""

    def absence(self, variant: Variant[SourceT_contra], index: ArchiveIndex | None) -> str:
        """Return why there are no versions at all, as the end of a sentence."""

    def pin(
        self, driver: str, variant: Variant[SourceT_contra], version: str, market: Market
    ) -> Pinned:
        """Return what a version consists of.

        Raises:
            NotFoundError: A part of it is missing, or of another version.
            ProvisionError: What offers it says what no Pin can.
        """

    def is_user_space(self, variant: Variant[SourceT_contra], source: Source) -> bool:
        """Return whether a part is unpacked only after the modules are built."""


def newest_first(versions: Iterable[str]) -> list[str]:
    """Return versions in Debian's order, the newest first, each once."""
    return sorted(set(versions), key=version_key, reverse=True)
