"""Asks the vendor of a driver for its versions, branches and checksums."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest

from provision.build.driver_request import DriverRequest
from provision.build.workspace import Settings
from provision.catalogue import Recipe
from provision.catalogue.upstream import CHANNELS, DEFAULT_VERSION
from provision.distros import source_names
from provision.files import in_root, is_writable
from provision.host.folders import STORE
from provision.pin import DistroPin
from provision.progress import Note, Progress, silent
from provision.sources import PublishedSum
from provision.sources.upstream import MAX_AGE, Reading, SumRecord, ask, known_branches, today


def read_upstream(
    settings: Settings, recipe: Recipe, *, distro: str | None = None, max_age: float = 0.0
) -> tuple[Reading, ...]:
    """Ask the sources of a recipe.

    Args:
        distro: ``ID:VERSION``, for sources that are for some distros only.
        max_age: Seconds for which a kept answer counts; 0: each source is asked; infinite: only
            those that never answered.
    """
    return ask(
        recipe.upstream,
        machine=settings.architecture,
        distro=distro,
        folder=settings.state,
        max_age=max_age,
    )


@dataclass(frozen=True, slots=True)
class Followed:
    """The versions that a request stands for, by the vendor's answers.

    Attributes:
        branches: The branches of the requested kind (``lts``), in the order of preference; None: no
            kind is requested.
        published: The versions whose files the vendor has, where a source takes any version.
    """

    branches: tuple[str, ...] | None = None
    published: tuple[str, ...] = ()
    ended: frozenset[str] = frozenset()


def follow(
    settings: Settings, request: DriverRequest, distro: DistroPin, *, progress: Progress = silent
) -> Followed:
    """Find out which versions a request stands for, as far as the vendor decides that.

    The vendor is asked only for a kind of branch, and for the newest version of a source that takes
    any version. If it does not answer, its earlier answer and the recipe count.

    Args:
        request: The driver and its version. If it prefers a version, no newer one is looked for.
    """
    version, chosen = request.version_name, request.prefer
    recipe = settings.catalogue.entry(request.driver).recipe
    if version == DEFAULT_VERSION and not recipe.upstream.has_kinds:
        version = None
    takes_any = _takes_any(recipe, version, distro)
    if version not in CHANNELS and not takes_any:
        return Followed()
    readings = read_upstream(
        settings,
        recipe,
        distro=f"{distro.id}:{distro.version}",
        max_age=MAX_AGE if chosen is None else math.inf,
    )
    _say_troubles(readings, progress)
    branches = known_branches(recipe.upstream, readings)
    # The preferred version had a file, even if no source names it now.
    published = (*files_of(readings), *([chosen] if chosen else ()))
    return Followed(
        branches.followed(version, today()) if version is not None else None,
        published if takes_any else (),
        frozenset(branch.name for branch in branches.all if branch.has_ended(today())),
    )


def _say_troubles(readings: Iterable[Reading], progress: Progress) -> None:
    """Report the sources that do not answer, and once for all of them what is used instead."""
    troubles = [
        (reading.trouble, f"its answer of {_day(reading)}" if reading.answer else "the recipe")
        for reading in readings
        if reading.trouble is not None
    ]
    following = [used for _, used in troubles[1:]]
    for (trouble, used), next_used in zip_longest(troubles, following):
        instead = "" if used == next_used else f" Using {used} instead."
        progress(Note(f"{trouble.message}{instead}"))


def _takes_any(recipe: Recipe, version: str | None, distro: DistroPin) -> bool:
    """Return whether the source that decides takes versions that it doesn't list.

    The first source that serves the distro decides the newest version, and the first that serves a
    branch decides that branch. A whole version needs no answer of the vendor.
    """
    names = source_names(distro)
    if version in CHANNELS:
        return any(source.takes_any_version and source.fits(names) for source in recipe.sources)
    if version is not None and len(version.split(".")) > recipe.upstream.branch_parts:
        return False
    serving = (source for source in recipe.sources if source.fits(names, version))
    first = next(serving, None)
    return first is not None and first.takes_any_version


def files_of(readings: Iterable[Reading]) -> tuple[str, ...]:
    """Return the versions of those sources whose versions all have files."""
    named = (r.version for reading in readings if reading.source.files for r in reading.releases)
    return tuple(dict.fromkeys(named))


def _day(reading: Reading) -> str:
    read = 0 if reading.answer is None else reading.answer.read
    return f"{datetime.fromtimestamp(read, tz=UTC):%Y-%m-%d %H:%M} UTC"


def vendor_sums(
    settings: Settings, *, again: bool = False, progress: Progress = silent
) -> PublishedSum:
    """Return a function that returns a vendor's checksum, from the record or from the vendor.

    The record lies beside the store, because the state folder may be deleted at any time. Users who
    may not write there have a record in the state folder.

    Args:
        again: Ask the vendor although the checksum is known, and compare.
    """
    store = in_root(settings.root, STORE)
    state = store if is_writable(store) else settings.state
    return SumRecord(state, again=again, progress=progress).sum_of
