"""Chooses the flavour and version of a driver: what is asked for, or what fits the kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.build.compatibility import (
    KernelRequest,
    buildable_kernels,
    choices,
    elsewhere,
    known_ranges,
    looked_in,
    suitable_versions,
)
from provision.catalogue import Recipe
from provision.catalogue.upstream import CHANNELS
from provision.distros.debian import ArchiveIndex
from provision.errors import NotFoundError
from provision.sources import (
    Market,
    Offer,
    kind_of,
    offers,
    unlisted,
)

# A version, and not only a branch.
_WHOLE = re.compile(r"[0-9]+(\.[0-9]+)+")


def chosen_flavour(recipe: Recipe, name: str | None) -> str:
    """Return the flavour that is asked for: None stands for the default.

    Raises:
        NotFoundError: The recipe has none of that name.
    """
    if name is None:
        return recipe.default_flavour
    if name not in recipe.flavours:
        raise NotFoundError(
            f"'{recipe.name}' has no flavour '{name}'.", resolution=choices(name, recipe.flavours)
        )
    return name


def choose_offer(recipe: Recipe, flavour: str, request: KernelRequest, market: Market) -> Offer:
    """Return the version asked for, or the first of those that fits the kernel, or the first.

    Of each source the newest comes first; a recipe's first source that serves the distro goes
    before the others.
    """
    offered = {offer.version: offer for offer in offers(recipe, flavour, market)}
    wanted, prefer = request.version.name, request.version.prefer
    candidates, fitting = suitable_versions(recipe, list(offered), request)
    if not candidates and wanted is not None and _WHOLE.fullmatch(wanted):
        asked = unlisted(recipe, flavour, wanted, market)
        if asked is not None:
            offered[wanted] = asked
            candidates = fitting = [wanted]
    if not candidates and not offered and (wanted is None or market.index is None):
        raise _nothing_offered(recipe, flavour, market)
    if not candidates:
        raise NotFoundError(
            f"'{recipe.name}' ({flavour}) has no version {wanted} for {market.distro}.",
            resolution=_offers(request, list(offered)),
            details=elsewhere(recipe, flavour, wanted or "", market),
        )
    chosen = prefer if prefer in fitting else (fitting or candidates)[0]
    return offered[chosen]


def _offers(request: KernelRequest, offered: Sequence[str]) -> str:
    """Say what there is instead of what was asked for."""
    version = request.version
    if version.branches is None:
        return choices(version.name or "", offered, also=CHANNELS)
    kinds = ", ".join(version.branches) or "none that are known"
    return f"Branches of this kind: {kinds}. {choices('', offered)}"


def _nothing_offered(recipe: Recipe, flavour: str, market: Market) -> NotFoundError:
    variants = list(recipe.variants(market.names, flavour))
    reasons = [kind_of(v.source).absence(v, market.index) for v in variants]
    if not variants:
        served = {
            pattern
            for variant in recipe.variants(None, flavour)
            for pattern in variant.source.distros
        }
        reasons = [f"its sources serve {', '.join(sorted(served))}"]
    if market.index is None:
        resolution: str | None = (
            "Take a driver whose source is an archive ('provision drivers' says which"
            " kind each has), or add such a source to a driver.toml of your own (--catalogue)."
        )
    else:
        resolution = _other_flavours(recipe, flavour, market)
    return NotFoundError(
        f"'{recipe.name}' ({flavour}) is not offered for {market.distro}: {'; '.join(reasons)}.",
        resolution=resolution,
        details=looked_in(recipe, flavour, market),
    )


def _other_flavours(recipe: Recipe, flavour: str, market: Market) -> str | None:
    others = [f for f in recipe.flavours if f != flavour and offers(recipe, f, market)]
    return f"Take another flavour (--flavour): {', '.join(others)}." if others else None


def check_kernel(
    recipe: Recipe, version: str, request: KernelRequest, index: ArchiveIndex | None
) -> None:
    """Refuse a kernel that the recipe doesn't know, unless forced.

    Such a build fails after minutes, or worse: it succeeds and the module breaks the kernel.
    """
    if request.force or recipe.builds_on(version=version, kernel_release=request.kernel):
        return
    kernels = buildable_kernels(recipe, version, index, like=request.kernel) if index else []
    known = known_ranges(recipe, version)
    raise NotFoundError(
        f"'{recipe.name}' {version} is not known to build on the kernel {request.kernel}.",
        resolution="Take one of the packaged kernels that it builds on (--kernel), or try it all"
        " the same with --force."
        if kernels
        else "Try it all the same with --force, or another version of the driver.",
        details="\n".join(
            [
                *(f"driver.toml, {line}" for line in known or ["nothing about this version"]),
                *([_packaged(kernels)] if index else []),
            ]
        ),
    )


def _packaged(kernels: list[str]) -> str:
    return f"packaged kernels that it builds on: {', '.join(kernels) or 'none'}"
