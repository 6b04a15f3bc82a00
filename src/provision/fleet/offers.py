"""Queries archives and vendors for the versions and kernels of a compatibility matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from provision.build.base_image import base_request, ensure_distro_base
from provision.build.request import DriverRequest, VersionRequest, choose_distro, is_whole
from provision.build.solve import SolvingSession, required_components
from provision.build.versions import follow
from provision.build.workspace import Settings
from provision.catalogue import Entry, Recipe, version_matches
from provision.catalogue.fields import is_of
from provision.catalogue.suitability import Card, flavour_for
from provision.distros.archive import Archive
from provision.distros.distro import distro_named, source_names, uses_archive
from provision.documents import how_to_correct
from provision.errors import ConfigError, Mistake, NotFoundError, UsageError
from provision.fleet import (
    Cell,
    Fleet,
    Offer,
    Offers,
    Planned,
    Selection,
    has_pattern,
    latest_count,
    newest_count,
    plan_cells,
)
from provision.host.facts import PciDevice
from provision.pin import DistroPin
from provision.progress import Note, report
from provision.sources.candidates import SourceContext, candidates, newest_first, unlisted

# Kinds of sources whose versions may be those of packages.
_PACKAGED = frozenset({"deb", "dkms"})

_MOST_CELLS = 10_000


def find_offers(settings: Settings, selection: Selection) -> Offers:
    """Query the archives of distros for their versions and kernels."""
    entries = _entries(settings, selection.drivers)
    _require_drivers(selection.cards, entries)
    names = selection.distros or (None,)
    distros = list(dict.fromkeys(choose_distro(settings, name) for name in names))
    found: list[Offer] = []
    kernels: dict[str, tuple[str, ...] | None] = {}
    for distro in distros:
        report(Note(f"Querying what {distro.name} offers"))
        kernels[distro.name] = _kernels(settings, distro, selection.kernels)
        found += _offers(settings, entries, distro, selection)
    # The offers of one driver follow each other.
    order = {entry.recipe.name: number for number, entry in enumerate(entries)}
    return Offers(tuple(sorted(found, key=lambda offer: order[offer.driver])), kernels)


def fleet_cells(settings: Settings, path: Path, fleet: Fleet) -> list[Planned]:
    """Return all cells of a fleet, each once, in the order of the file."""
    found: dict[Cell, Planned] = {}
    wrong: list[Mistake] = []
    for at, selection in enumerate(fleet.selections()):
        try:
            offers = find_offers(settings, selection)
            planned = plan_cells(selection, offers)
        except UsageError as error:
            text = " ".join(filter(None, (error.message, error.resolution)))
            wrong.append(Mistake(f"builds.{at}", f"{text} {error.details or ''}".strip()))
            continue
        for one in planned:
            # If one build refuses a cell and another forces it, it is built.
            known = found.get(one.cell)
            if known is None or known.refusal is not None:
                found[one.cell] = one
    if len(found) > _MOST_CELLS:
        text = f"these are {len(found)} cells, and the limit is {_MOST_CELLS}; name fewer kernels"
        wrong.append(Mistake("builds", text))
    if wrong:
        raise ConfigError(str(path), wrong, resolution=how_to_correct(path, Fleet))
    return list(found.values())


def ensure_base_images(settings: Settings, planned: Iterable[Planned]) -> None:
    """Make sure that the engine has the base image of every distro of the planned builds.

    A missing base image is then a single error, and not a failure of every cell.
    """
    for distro in dict.fromkeys(one.cell.column.distro for one in planned if one.refusal is None):
        if not has_tree(distro):
            request = base_request(settings, choose_distro(settings, distro))
            ensure_distro_base(settings, request)


def has_tree(distro: str) -> bool:
    """Return whether a distro, such as ``flatcar:3227.2.4``, has a tree in place of packages."""
    data = distro_named(distro.partition(":")[0])
    return data is not None and data.family == "tree"


def _entries(settings: Settings, names: Iterable[str]) -> list[Entry]:
    listed = list(dict.fromkeys(names))
    if "all" in listed:
        listed = settings.catalogue.names
    return [settings.catalogue.entry(name) for name in listed]


def _kernels(settings: Settings, distro: DistroPin, names: Iterable[str]) -> tuple[str, ...] | None:
    if not has_tree(distro.id):
        with SolvingSession(settings, distro) as session:
            return session.kernels()
    if any(map(has_pattern, names)):
        raise NotFoundError(
            f"{distro.name} has no packages of kernels that could be listed.",
            resolution=f"Name the kernels: --distros {distro.name} --kernels RELEASE,…",
        )
    return None


def _offers(
    settings: Settings, entries: Iterable[Entry], distro: DistroPin, selection: Selection
) -> Iterator[Offer]:
    """Yield what a distro offers; its archive is asked once for all drivers."""
    names = selection.versions
    has_archive = not has_tree(distro.id) and uses_archive(distro)
    refusals: dict[str, str] = {}
    packaged = []
    for recipe in (entry.recipe for entry in entries):
        if has_archive and any(source.kind in _PACKAGED for source in recipe.sources):
            try:
                required_components(recipe, distro)
                packaged.append(recipe)
            except NotFoundError as error:
                refusals[recipe.name] = error.message
    with ExitStack() as opened:
        archive = None
        if packaged:
            opening = SolvingSession(settings, distro, packaged)
            archive = opened.enter_context(opening).archive
        for recipe in (entry.recipe for entry in entries):
            requested = _followed(settings, recipe, distro, names)
            cards = _cards_by_flavour(recipe, selection.cards)
            for flavour in recipe.flavours:
                is_default = flavour in (cards or {recipe.default_flavour})
                versions: tuple[str, ...] = ()
                kinds: dict[str, tuple[str, ...]] = {}
                refusal = refusals.get(recipe.name)
                if refusal is None:
                    asked = archive if recipe in packaged else None
                    mine = cards.get(flavour, ())
                    versions, kinds = _versions(recipe, flavour, distro, asked, requested, mine)
                    if not versions and asked is None:
                        refusal = f"no source of '{recipe.name}' serves {distro.name}"
                yield Offer(
                    recipe.name, flavour, distro.name, versions, is_default, recipe, refusal, kinds
                )


def _require_drivers(cards: Iterable[str], entries: Iterable[Entry]) -> None:
    vendors = {one.vendor for entry in entries for one in entry.recipe.hardware.pci}
    wrong = [card for card in cards if card.partition(":")[0] not in vendors]
    if wrong:
        raise UsageError(
            f"No chosen driver is for these cards: {', '.join(wrong)}.",
            resolution="Name them by vendor and device, as 'lspci -n' prints them (10de:1c81), and"
            " a driver that 'provision drivers' lists for them.",
        )


def _cards_by_flavour(recipe: Recipe, ids: Iterable[str]) -> dict[str, list[Card]]:
    found: dict[str, list[Card]] = {}
    for vendor, _, device in (one.partition(":") for one in ids):
        if any(one.vendor == vendor for one in recipe.hardware.pci):
            known = recipe.hardware.generation(device)
            card = Card(PciDevice("", vendor, device, "", None), known)
            found.setdefault(flavour_for(recipe, [card]), []).append(card)
    return found


def _followed(
    settings: Settings, recipe: Recipe, distro: DistroPin, names: Iterable[str]
) -> dict[str, VersionRequest]:
    return {
        name: follow(
            settings,
            DriverRequest(recipe.name, version="latest" if latest_count(name) else name),
            distro,
        )
        for name in dict.fromkeys(names)
        if name != "all"
    }


def _versions(
    recipe: Recipe,
    flavour: str,
    distro: DistroPin,
    archive: Archive | None,
    requested: Mapping[str, VersionRequest],
    cards: Sequence[Card],
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the versions of a flavour, and the versions of kinds of branches.

    A vendor may have published hundreds of versions besides those of the recipe. Only those count
    that a host would get for the requested names.
    """
    context = SourceContext(distro.name, source_names(distro), archive)
    kinds: dict[str, tuple[str, ...]] = {}
    more: list[str] = []
    for name, followed in requested.items():
        there = context._replace(published=followed.published)
        by_source: dict[str, list[str]] = {}
        for version, variant in candidates(recipe, flavour, there).items():
            if not cards or any(card.takes_version(version) for card in cards):
                by_source.setdefault(variant.label, []).append(version)
        every = [version for versions in by_source.values() for version in versions]
        if followed.branches is not None:
            newest = {
                branch: _taken_of(recipe, [version for version in every if is_of(version, branch)])
                for branch in followed.branches
            }
            supported = [v for b, found in newest.items() if b not in followed.ended for v in found]
            # Hosts take a version of an ended branch only if there is no other.
            others = [version for found in newest.values() for version in found]
            kinds[name] = tuple(supported or others[:1])
            more += kinds[name]
        elif count := newest_count(name):
            # Which source a host takes depends on its kernel.
            for versions in by_source.values():
                more += _taken_of(recipe, versions, count)
        elif found := next((version for version in every if is_of(version, name)), None):
            more.append(found)
        elif is_whole(name) and unlisted(recipe, flavour, name, context):
            more.append(name)
    taken = candidates(recipe, flavour, context._replace(published=tuple(more)))
    return tuple(taken), kinds


def _taken_of(recipe: Recipe, versions: list[str], count: int = 1) -> list[str]:
    """Return those of some versions, the newest first, that hosts may take.

    Those are the newest, and where nobody has tried these, also the newest that somebody has: which
    of them a host takes depends on its kernel.
    """
    works = (row.versions for row in recipe.kernels if row.works is not None)
    tried = [v for one in works for v in versions if version_matches(v, one)]
    return list(dict.fromkeys([*versions[:count], *newest_first(tried)[:count]]))
