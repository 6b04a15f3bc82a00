"""The cells of a compatibility matrix, what selects them, and what is offered for them.

``matrix.selecting`` chooses cells, ``matrix.offers`` gathers the offers, and ``matrix.results``
holds the result of each cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.catalogue import Recipe
from provision.catalogue.upstream import DEFAULT_VERSION

DEFAULT = "default"


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A driver in one version and flavour."""

    driver: str
    version: str
    flavour: str

    def __str__(self) -> str:
        return f"{self.driver} {self.version} ({self.flavour})"


@dataclass(frozen=True, slots=True, order=True)
class Column:
    """A kernel of a distro, which is named as ``debian:12``."""

    distro: str
    kernel: str

    def __str__(self) -> str:
        return f"{self.distro} {self.kernel}"


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One build of the matrix."""

    row: Row
    column: Column

    def __str__(self) -> str:
        return f"{self.row} on {self.column}"


@dataclass(frozen=True, slots=True)
class Planned:
    """A cell of a plan, and why it is not built."""

    cell: Cell
    # Why it is not supported; None: it is to be built.
    refusal: str | None = None
    resolution: str | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection of cells."""

    # Names, or ``all``.
    drivers: tuple[str, ...]
    # Such as ``debian:12``; empty: the host's.
    distros: tuple[str, ...] = ()
    # Releases, patterns such as ``6.1.0-*``, ``latest``, ``latest-N`` or ``all``.
    kernels: tuple[str, ...] = ("latest-3",)
    # Names, ``default`` or ``all``.
    flavours: tuple[str, ...] = (DEFAULT,)
    # Versions, branches, kinds of branches, ``latest``, ``latest-N`` or ``all``.
    versions: tuple[str, ...] = (DEFAULT_VERSION,)
    # Whether cells that the recipe does not support are built.
    force: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """The versions of a driver in one flavour for a distro."""

    driver: str
    flavour: str
    # Such as ``debian:12``.
    distro: str
    # The newest first.
    versions: tuple[str, ...] = ()
    is_default: bool = True
    # The recipe with the supported kernels; None: nothing is to be built.
    recipe: Recipe | None = None
    refusal: str | None = None
    # The versions that a kind of branch (``lts``) stands for, by its name.
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offers:
    """The versions and kernels that can be chosen."""

    offers: tuple[Offer, ...]
    # By distro, the newest first; None where they can't be listed and have to be named.
    kernels: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
