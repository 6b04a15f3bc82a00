"""Branches of a driver: the promise of their vendor, their end, and their successors. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime

from provision.catalogue.upstream import (
    CHANNELS,
    DEFAULT_VERSION,
    BranchFacts,
    Maturity,
    Upstream,
)
from provision.distros.debian.relations import compare_versions, version_key
from provision.sources.upstream.formats import Release
from provision.sources.upstream.queries import UpstreamResult


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch."""

    name: str
    maturity: Maturity | None = None
    last_day: date | None = None
    newest: str | None = None
    released: str | None = None

    def has_ended(self, today: date) -> bool:
        """Return whether its vendor no longer supports it."""
        return self.last_day is not None and self.last_day < today


@dataclass(frozen=True, slots=True)
class Branches:
    """The branches of a driver, the newest first."""

    upstream: Upstream
    all: tuple[Branch, ...]

    def of(self, version: str) -> Branch:
        """Return the branch of a version, even if only its name is known."""
        parts = version.split(".")
        named = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        known = [branch for branch in self.all if branch.name in named]
        longest = max(known, key=lambda branch: len(branch.name), default=None)
        return longest or Branch(self.upstream.branch_of(version))

    def followed(self, channel: str, today: date) -> tuple[str, ...] | None:
        """Return the branches that a version such as ``lts`` accepts, in the order of preference.

        Supported branches come first; an ended one is better than none.
        """
        if channel not in CHANNELS or (channel == DEFAULT_VERSION and not self.upstream.has_kinds):
            return None
        fitting = [branch for branch in self.all if branch.maturity in CHANNELS[channel]]
        # The sort is stable: within both groups the order stays.
        return tuple(b.name for b in sorted(fitting, key=lambda branch: branch.has_ended(today)))

    def successor(self, branch: Branch, today: date) -> Branch | None:
        """Return the branch to switch to from an ended one: supported, newer, and of the same kind.

        If no such branch exists, one for production counts.
        """
        newer = [
            other
            for other in self.all
            if not other.has_ended(today)
            and other.maturity is not None
            and compare_versions(other.name, branch.name) > 0
        ]
        suited = (branch.maturity,), CHANNELS["production"]
        found = (other for kinds in suited for other in newer if other.maturity in kinds)
        return next(found, None)


def known_branches(upstream: Upstream, readings: Iterable[UpstreamResult]) -> Branches:
    """Return the branches that a recipe or a source names.

    For the maturity of a branch, a source counts more than the recipe. Only the recipe has the end
    of its life. Source: https://docs.nvidia.com/datacenter/tesla/drivers/releases.json has
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
    """Return the day that decides which branches have ended: in UTC, so the same everywhere."""
    return datetime.now(tz=UTC).date()


@dataclass(frozen=True, slots=True)
class Ended:
    """A version whose branch the vendor no longer supports."""

    message: str
    resolution: str


def ended_branch(driver: str, version: str, branches: Branches, day: date) -> Ended | None:
    """Return that the branch of a version, or a branch itself, has ended; None if it has not."""
    found = branches.of(version)
    if not found.has_ended(day):
        return None
    what = "" if version == found.name else f"{version} is of the branch {found.name}: "
    message = f"{what}its vendor supported {found.name} until {found.last_day}, and no longer"
    successor = branches.successor(found, day)
    name = "another branch" if successor is None else f"the branch {successor.name}"
    value = "BRANCH" if successor is None else successor.name
    return Ended(
        message,
        f'For {name}, write version = "{value}" into [drivers.{driver}] of'
        " /etc/provision/provision.toml, then: provision apply. Whether it is offered for this"
        f" distro: provision drivers versions {driver}",
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
