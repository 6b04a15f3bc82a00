"""The kinds of sources of drivers, behind one protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from provision.catalogue import GIT_TOOLS, DebSource, DkmsSource, Recipe, RecipeSource, Variant
from provision.pin import Source
from provision.sources.kinds import (
    SCRIPT,
    Deb,
    Dkms,
    Market,
    Pinned,
    PublishedSum,
    Releases,
    Runfile,
    SourceKind,
    newest_first,
    no_published_sum,
)

__all__ = [
    "Market",
    "Offer",
    "Pinned",
    "PublishedSum",
    "SourceKind",
    "components_of",
    "kind_of",
    "newest_first",
    "no_published_sum",
    "offers",
    "packages_of",
    "pin_offer",
    "scripts_of",
    "tools_of",
    "unlisted",
    "unpacking",
]

_KINDS: Mapping[str, SourceKind[Any]] = {
    "deb": Deb(),
    "archive": Releases(),
    "git": Releases(GIT_TOOLS),
    "dkms": Dkms(),
    "runfile": Runfile(),
}


@dataclass(frozen=True, slots=True)
class Offer:
    """A version of a driver that can be built for a distro, and its source."""

    version: str
    variant: Variant[RecipeSource]


def kind_of(source: RecipeSource) -> SourceKind[Any]:
    """Return the implementation of a source's kind."""
    return _KINDS[source.kind]


def offers(recipe: Recipe, flavour: str, market: Market) -> list[Offer]:
    """Return the versions of a flavour that can be built for a distro.

    They come in the order of the recipe's sources, the newest first for each. Only the first source
    that serves a version on that distro offers it. A source that serves unlisted versions also
    offers those that the vendor has published.
    """
    found = []
    for variant in recipe.variants(market.names, flavour):
        versions = kind_of(variant.source).versions(variant, market.index)
        if variant.source.takes_any_version:
            versions = newest_first([*versions, *market.published])
        for version in versions:
            chosen = recipe.variant(market.names, flavour, version)
            if chosen is not None and chosen.label == variant.label:
                found.append(Offer(version, variant))
    return found


def unlisted(recipe: Recipe, flavour: str, version: str, market: Market) -> Offer | None:
    """Return the offer of an unlisted version, if its source serves such versions; or None."""
    variant = recipe.variant(market.names, flavour, version)
    if variant is None or not variant.source.takes_any_version:
        return None
    return Offer(version, variant)


def pin_offer(driver: str, offer: Offer, market: Market) -> Pinned:
    """Return the parts of an offered version; errors as for ``SourceKind.pin``."""
    return kind_of(offer.variant.source).pin(driver, offer.variant, offer.version, market)


def components_of(recipe: Recipe, distro: Collection[str]) -> tuple[str, ...]:
    """Return the components of a distro's archive that a recipe needs besides ``main``.

    Args:
        distro: The distro's names: id, ``id:version`` and family.
    """
    components = {
        component
        for source in recipe.sources
        if source.fits(distro)
        for component in kind_of(source).components(source)
    }
    return tuple(sorted(components))


def packages_of(recipe: Recipe, distro: Collection[str]) -> tuple[str, ...]:
    """Return the packages of a distro's archive that a recipe's sources name; as above."""
    packages = {
        name
        for flavour in recipe.flavours
        for variant in recipe.variants(distro, flavour)
        if isinstance(variant.source, DebSource | DkmsSource)
        for name in (variant.package, *variant.source.userspace, *variant.source.companions)
        if name is not None
    }
    return tuple(sorted(packages))


def tools_of(variant: Variant[RecipeSource]) -> tuple[str, ...]:
    """Return the packages that a build needs besides those of every build, by Debian's names."""
    return tuple(sorted({*kind_of(variant.source).tools, *variant.build.packages}))


def scripts_of(variant: Variant[RecipeSource]) -> tuple[str, ...]:
    """Return the template files that only builds of this kind of source run."""
    return (SCRIPT,) if isinstance(variant.source, DkmsSource) else ()


def unpacking(
    variant: Variant[RecipeSource], sources: tuple[Source, ...]
) -> tuple[list[Source], list[Source]]:
    """Return the parts that are unpacked before the build, and those that are unpacked after."""
    kind = kind_of(variant.source)
    late = [source for source in sources if kind.is_user_space(variant, source)]
    return [source for source in sources if source not in late], late
