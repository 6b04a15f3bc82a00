"""Which version of a driver is asked for: one rule for archives, registries and the store. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
