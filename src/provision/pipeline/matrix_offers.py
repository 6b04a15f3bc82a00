"""What a compatibility matrix can choose from: versions and kernels of distros, as offered now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from provision.archive import ArchiveIndex
from provision.catalogue import Entry
from provision.distros import distro_named, source_names
from provision.distros.apt_archive import uses_archive
from provision.errors import NotFoundError
from provision.image.engine import Engine
from provision.pin import DistroPin
from provision.pipeline.kernels import distro_kernels
from provision.pipeline.matrix import Offer, Offers, Selection, has_pattern
from provision.pipeline.settings import Settings
from provision.pipeline.solving import choose_distro, open_driver_index
from provision.progress import Note, Progress, silent
from provision.recipe import Recipe
from provision.sources import Market, offers


def find_offers(
    settings: Settings,
    engine: Callable[[], Engine],
    selection: Selection,
    *,
    progress: Progress = silent,
) -> Offers:
    """Ask the archives of distros what they have.

    Args:
        settings: The host.
        engine: Connects to the engine; called for distros whose kernels only a container can list.
        selection: What is asked for.
        progress: Gets what is looked at.

    Raises:
        NotFoundError: A driver or distro is unknown, or a distro's kernels can't be listed and are
            not named.
        ConfigError: A recipe has mistakes.
        ProvisionError: An archive or the engine failed.
    """
    entries = _entries(settings, selection.drivers)
    names = selection.distros or (None,)
    distros = list(dict.fromkeys(choose_distro(settings, name) for name in names))
    found: list[Offer] = []
    kernels: dict[str, tuple[str, ...] | None] = {}
    for distro in distros:
        name = distro_name(distro)
        progress(Note(f"Looking at what {name} has"))
        kernels[name] = _kernels(settings, engine, distro, selection.kernels, progress)
        for entry in entries:
            found += _offers(settings, entry, distro, progress)
    # Those of a driver side by side.
    order = {entry.recipe.name: number for number, entry in enumerate(entries)}
    return Offers(tuple(sorted(found, key=lambda offer: order[offer.driver])), kernels)


def distro_name(distro: DistroPin) -> str:
    """Return a distro as the command line names it: ``debian:12``."""
    return f"{distro.id}:{distro.version}"


def has_tree(distro: str) -> bool:
    """Return whether a distro, such as ``flatcar:3227.2.4``, has a tree in place of packages."""
    data = distro_named(distro.partition(":")[0])
    return data is not None and data.family == "tree"


def _entries(settings: Settings, names: Iterable[str]) -> list[Entry]:
    wanted = list(dict.fromkeys(names))
    if "all" in wanted:
        wanted = settings.catalogue.names
    return [settings.catalogue.entry(name) for name in wanted]


def _kernels(
    settings: Settings,
    engine: Callable[[], Engine],
    distro: DistroPin,
    wanted: Iterable[str],
    progress: Progress,
) -> tuple[str, ...] | None:
    if not has_tree(distro.id):
        return distro_kernels(settings, engine, distro, progress=progress)
    if any(map(has_pattern, wanted)):
        raise NotFoundError(
            f"{distro_name(distro)} has no packages of kernels that could be listed.",
            resolution=f"Name the kernels: --distros {distro_name(distro)} --kernels RELEASE,…",
        )
    return None


def _offers(
    settings: Settings, entry: Entry, distro: DistroPin, progress: Progress
) -> Iterator[Offer]:
    recipe, name = entry.recipe, distro_name(distro)
    default = recipe.default_flavour
    if has_tree(distro.id) or not uses_archive(distro):
        for flavour in recipe.flavours:
            versions = _versions(recipe, flavour, distro, None)
            made_from = f"no source of '{recipe.name}' serves {name}"
            refusal = None if versions else made_from
            is_default = flavour == default
            yield Offer(recipe.name, flavour, name, versions, is_default, recipe, refusal)
        return
    try:
        index = open_driver_index(settings, entry, distro, progress=progress)
    except NotFoundError as error:
        for flavour in recipe.flavours:
            is_default = flavour == default
            yield Offer(recipe.name, flavour, name, (), is_default, recipe, error.message)
        return
    try:
        for flavour in recipe.flavours:
            versions = _versions(recipe, flavour, distro, index)
            yield Offer(recipe.name, flavour, name, versions, flavour == default, recipe)
    finally:
        index.close()


def _versions(
    recipe: Recipe, flavour: str, distro: DistroPin, index: ArchiveIndex | None
) -> tuple[str, ...]:
    market = Market(distro_name(distro), source_names(distro), index)
    return tuple(offer.version for offer in offers(recipe, flavour, market))
