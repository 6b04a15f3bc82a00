"""Follows what a vendor offers: its branches, and which of them a version such as ``lts`` is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from provision.catalogue import Recipe
from provision.catalogue.upstream import CHANNELS
from provision.distros import source_names
from provision.host.facts import read_facts
from provision.pin import DistroPin
from provision.pipeline.driver_request import DriverRequest
from provision.pipeline.workspace import Settings
from provision.progress import Note, Progress, silent
from provision.sources.upstream import MAX_AGE, Reading, ask, known_branches, today


def read_upstream(
    settings: Settings, recipe: Recipe, *, distro: str | None = None, max_age: float = 0.0
) -> tuple[Reading, ...]:
    """Ask the sources of a recipe.

    Args:
        settings: The host.
        recipe: The driver's.
        distro: ``ID:VERSION``, for sources that are for some distros only.
        max_age: Seconds for which a kept answer does; 0: each source is asked; infinite: only
            those that never answered.
    """
    return ask(
        recipe.upstream,
        machine=read_facts(settings.root).arch,
        distro=distro,
        folder=settings.state,
        max_age=max_age,
    )


@dataclass(frozen=True, slots=True)
class Followed:
    """What a version that is asked for stands for, as the vendor says.

    Attributes:
        branches: The branches of the kind that is asked for (``lts``), in the order of preference;
            None: no kind is.
        published: The versions whose files the vendor has, where a source takes any version.
    """

    branches: tuple[str, ...] | None = None
    published: tuple[str, ...] = ()


def follow(
    settings: Settings, wanted: DriverRequest, distro: DistroPin, *, progress: Progress = silent
) -> Followed:
    """Find out what a wanted version stands for, as far as its vendor decides that.

    The vendor is asked only where it does: for a kind of branch, and for the newest version of a
    source that takes any. One that does not answer changes nothing: what it said before counts,
    and the recipe.

    Args:
        settings: The host.
        wanted: The driver and its version. Where a version was chosen before and stays
            (``prefer``), nothing new is looked for.
        distro: What is built for.
        progress: Receives which sources do not answer.

    Raises:
        NotFoundError: The driver is unknown.
    """
    version, chosen = wanted.version_name, wanted.prefer
    recipe = settings.catalogue.entry(wanted.driver).recipe
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
    # What was chosen had a file, whatever is known now.
    published = (*files_of(readings), *([chosen] if chosen else ()))
    return Followed(
        branches.followed(version, today()) if version is not None else None,
        published if takes_any else (),
    )


def _say_troubles(readings: Iterable[Reading], progress: Progress) -> None:
    """Say which sources do not answer, and what counts in place of an answer."""
    for reading in readings:
        if reading.trouble is not None:
            counts = f"its answer of {_day(reading)}" if reading.answer else "the recipe"
            progress(Note(f"{reading.trouble.message} What counts is {counts}"))


def _takes_any(recipe: Recipe, version: str | None, distro: DistroPin) -> bool:
    """Return whether the source that decides takes versions which it doesn't list.

    The first source that serves the distro decides what the newest is, and the first that serves a
    branch about that branch; a whole version needs no vendor to say that it exists.
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
    """Return the versions that sources name whose versions all have files."""
    named = (r.version for reading in readings if reading.source.files for r in reading.releases)
    return tuple(dict.fromkeys(named))


def _day(reading: Reading) -> str:
    read = 0 if reading.answer is None else reading.answer.read
    return f"{datetime.fromtimestamp(read, tz=UTC):%Y-%m-%d %H:%M} UTC"
