"""The sources of a vendor's versions: ``[upstream]`` in a driver.toml.

Data types only; ``provision.sources.upstream`` queries the sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from provision.catalogue.fields import Day, PublicUrl, Reviewed, known_placeholders, last_day
from provision.documents import Frozen, like

# A vendor's promise for a branch, the longest support first.
Maturity = Literal["lts", "production", "new-feature"]
# Names for the newest branch of a kind, and the kinds that each accepts: a branch with long support
# suits production too. Source:
# https://docs.nvidia.com/datacenter/tesla/drivers/driver-lifecycle.html
CHANNELS: Mapping[str, tuple[Maturity, ...]] = {
    "auto": ("lts", "production"),
    "lts": ("lts",),
    "production": ("lts", "production"),
    "new-feature": ("lts", "production", "new-feature"),
}

# The version of a request that names none.
DEFAULT_VERSION = "auto"
# For a driver without kinds of branches, these are its newest version.
NEWEST_WITHOUT_KINDS = frozenset({DEFAULT_VERSION, "production"})


def is_of(version: str, branch: str) -> bool:
    """Return whether a version belongs to a branch: ``535.261.03`` to ``535`` and ``535.261``."""
    return version == branch or version.startswith(f"{branch}.")


def _address(text: str) -> str:
    return known_placeholders(text, known=frozenset({"arch"}))


def _pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        # The last two: a number of repetitions or a nesting that is too large.
        raise ValueError(f"no regular expression: {error}") from error
    if groups != 1:
        raise ValueError("needs exactly one group in parentheses, which is the version")
    return text


BranchName = Annotated[str, like(r"^[0-9]+(\.[0-9]+)*$", "580 or 2.1", max_length=32)]
Address = Annotated[PublicUrl, AfterValidator(_address)]
Pattern = Annotated[str, StringConstraints(max_length=200), AfterValidator(_pattern)]


class _Source(Frozen):
    """What all kinds of sources have.

    Attributes:
        url: Its address; ``{arch}`` stands for the machine's architecture.
        arch: The value of ``{arch}`` for each architecture of ``uname -m``; by default the same.
        distros: Patterns of the distros that it is for, such as ``rhel:9*``; empty: any.
        files: Whether each version that it names has a file where the recipe's sources that take
            any version look for it; such a version is offered without an edit of the recipe.
    """

    url: Address
    arch: dict[str, str] = Field(default_factory=dict)
    distros: tuple[str, ...] = ()
    files: bool = False

    def named(self, machine: str) -> str:
        """Return the source's name of an architecture."""
        return self.arch.get(machine, machine)

    def address(self, machine: str) -> str:
        """Return the address for an architecture."""
        return self.url.replace("{arch}", self.named(machine))

    def serves(self, distro: str | None) -> bool:
        """Return whether it serves a distro, ``ID:VERSION``; None: any distro."""
        return not self.distros or (
            distro is not None and any(fnmatchcase(distro, one) for one in self.distros)
        )


class NvidiaReleases(_Source):
    """NVIDIA's list of data center drivers, by branch, with what each branch is."""

    kind: Literal["nvidia-releases-json"]


class GitTags(_Source):
    """Tags of a git repository.

    Attributes:
        pattern: Regular expression of the whole name of a tag; its one group is the version.
    """

    kind: Literal["git-tags"]
    pattern: Pattern = r"v?([0-9][0-9.]*)"


UpstreamSource = Annotated[NvidiaReleases | GitTags, Field(discriminator="kind")]


class BranchFacts(Frozen):
    """What is known of a branch whatever its vendor's servers say now.

    Attributes:
        maturity: ``"lts"``, ``"production"`` or ``"new-feature"``; a source that states it takes
            precedence.
        end_of_life: The last month or day (``"2026-06"``, ``"2026-06-30"``) of support, after which
            ``provision doctor`` warns.
    """

    maturity: Maturity | None = None
    end_of_life: Day | None = None

    @property
    def last_day(self) -> date | None:
        """The last day of its life; None if unknown."""
        return None if self.end_of_life is None else last_day(self.end_of_life)


class Upstream(Reviewed):
    """An ``[upstream]``.

    Attributes:
        branch_parts: How many parts of a version name its branch: 1: ``535`` of ``535.261.03``; 2:
            ``0.12`` of ``0.12.7``.
        sources: Where the vendor says which versions there are.
        branches: What is known of branches.
        reviewed: As ``reviewed`` of ``[hardware]``, for ``branches``.
    """

    branch_parts: int = Field(default=1, ge=1, le=4)
    sources: tuple[UpstreamSource, ...] = ()
    branches: dict[BranchName, BranchFacts] = Field(default_factory=dict)

    @property
    def has_kinds(self) -> bool:
        """Whether the recipe or a source says of which kind a branch is."""
        return any(facts.maturity for facts in self.branches.values()) or any(
            source.kind == "nvidia-releases-json" for source in self.sources
        )

    def branch_of(self, version: str) -> str:
        """Return the name of the branch that a version belongs to."""
        parts = version.split(".")
        named = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        own = next((name for name in named if name in self.branches), None)
        return own or ".".join(parts[: self.branch_parts])
