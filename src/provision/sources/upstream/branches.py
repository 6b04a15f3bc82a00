"""Branches of a driver: what their vendor promises, how long, and which one comes after. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime

from provision.catalogue.upstream import CHANNELS, BranchFacts, Maturity, Upstream
from provision.distros.debian import compare_versions, version_key
from provision.sources.upstream.formats import Release
from provision.sources.upstream.queries import Reading


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch.

    Attributes:
        name: The leading part of its versions: ``535``.
        maturity: What its vendor promises; None: nothing is known of it.
        last_day: The last day on which the vendor cares for it; None: nothing is known of it.
        newest: Its newest version that a source names; None: none does.
        released: The day on which that came out, ``YYYY-MM-DD``.
    """

    name: str
    maturity: Maturity | None = None
    last_day: date | None = None
    newest: str | None = None
    released: str | None = None

    def has_ended(self, today: date) -> bool:
        """Return whether its vendor cares for it no longer."""
        return self.last_day is not None and self.last_day < today


@dataclass(frozen=True, slots=True)
class Branches:
    """The branches of a driver, the newest first.

    Attributes:
        upstream: What its recipe says.
        all: The branches.
    """

    upstream: Upstream
    all: tuple[Branch, ...]

    def of(self, version: str) -> Branch:
        """Return the branch that a version belongs to; nothing may be known of it."""
        parts = version.split(".")
        named = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        known = [branch for branch in self.all if branch.name in named]
        longest = max(known, key=lambda branch: len(branch.name), default=None)
        return longest or Branch(self.upstream.branch_of(version))

    def followed(self, wanted: str, today: date) -> tuple[str, ...] | None:
        """Return the branches that a version such as ``lts`` accepts, in the order of preference.

        Those that their vendor still cares for come first; an ended one is better than none.

        Returns:
            Their names; None: it is no name of a kind of branch.
        """
        if wanted not in CHANNELS:
            return None
        fitting = [branch for branch in self.all if branch.maturity in CHANNELS[wanted]]
        # Sorting keeps the order of those that are equal in this.
        return tuple(b.name for b in sorted(fitting, key=lambda branch: branch.has_ended(today)))

    def successor(self, branch: Branch, today: date) -> Branch | None:
        """Return the branch to switch to from an ended one: living, newer, and of the same kind.

        Where there is none of that kind, one that is fit for production will do.
        """
        newer = [
            other
            for other in self.all
            if not other.has_ended(today)
            and other.maturity is not None
            and compare_versions(other.name, branch.name) > 0
        ]
        wanted = (branch.maturity,), CHANNELS["production"]
        found = (other for kinds in wanted for other in newer if other.maturity in kinds)
        return next(found, None)


def known_branches(upstream: Upstream, readings: Iterable[Reading]) -> Branches:
    """Return the branches that a recipe or a source names.

    Of what a branch is, a source that says so counts more than the recipe; the end of its life is
    the recipe's to say. Source: https://docs.nvidia.com/datacenter/tesla/drivers/releases.json has
    none.
    """
    releases: dict[str, list[Release]] = {name: [] for name in upstream.branches}
    for reading in readings:
        for release in reading.releases:
            name = release.branch or upstream.branch_of(release.version)
            releases.setdefault(name, []).append(release)
    names = sorted(releases, key=version_key, reverse=True)
    return Branches(upstream, tuple(_branch(upstream, name, releases[name]) for name in names))


def today() -> date:
    """Return the day, by which branches have ended: everywhere the same."""
    return datetime.now(tz=UTC).date()


def how_to_switch(driver: str, successor: Branch | None) -> str:
    """Say how a host gets to another branch of a driver."""
    name = "another branch" if successor is None else f"the branch {successor.name}"
    value = "BRANCH" if successor is None else successor.name
    return (
        f'For {name}, write version = "{value}" into [drivers.{driver}] of'
        " /etc/provision/provision.toml, then: provision apply. Whether it is offered for this"
        f" distro: provision versions {driver}"
    )


def _branch(upstream: Upstream, name: str, releases: list[Release]) -> Branch:
    facts = upstream.branches.get(name, BranchFacts())
    said = next((r.maturity for r in releases if r.maturity is not None), None)
    newest = max(releases, key=lambda release: version_key(release.version), default=None)
    same = [r for r in releases if newest is not None and r.version == newest.version]
    return Branch(
        name=name,
        maturity=said or facts.maturity,
        last_day=facts.last_day,
        newest=newest.version if newest else None,
        released=next((r.released for r in same if r.released), None),
    )
