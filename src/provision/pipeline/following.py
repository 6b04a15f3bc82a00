"""Follows what a vendor offers: its branches, and which of them a wish such as ``lts`` is."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from provision.host import read_facts
from provision.pipeline.settings import Settings
from provision.progress import Note, Progress, silent
from provision.recipe import Recipe
from provision.releases import MAX_AGE, Reading, ask, known_branches, today
from provision.upstream import CHANNELS


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


def followed_branches(
    settings: Settings,
    driver: str,
    version: str | None,
    *,
    is_chosen: bool,
    progress: Progress = silent,
) -> tuple[str, ...] | None:
    """Return the branches of the kind that is asked for, in the order of preference.

    A vendor that does not answer changes nothing: what it said before counts, and the recipe.

    Args:
        settings: The host.
        driver: The driver.
        version: What is asked for.
        is_chosen: Whether a version was chosen before and stays, so that nothing new is looked for.
        progress: Told which sources do not answer.

    Returns:
        Their names; None: no kind of branch is asked for.

    Raises:
        NotFoundError: The driver is unknown.
    """
    if version is None or version not in CHANNELS:
        return None
    recipe = settings.catalogue.entry(driver).recipe
    readings = read_upstream(settings, recipe, max_age=math.inf if is_chosen else MAX_AGE)
    for reading in readings:
        if reading.trouble is not None:
            counts = f"its answer of {_day(reading)}" if reading.answer else "the recipe"
            progress(Note(f"{reading.trouble.message} What counts is {counts}"))
    return known_branches(recipe.upstream, readings).followed(version, today())


def _day(reading: Reading) -> str:
    read = 0 if reading.answer is None else reading.answer.read
    return f"{datetime.fromtimestamp(read, tz=UTC):%Y-%m-%d %H:%M} UTC"
