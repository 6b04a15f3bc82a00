"""Which versions and kernels of a driver go together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from provision.build.request import Request
from provision.catalogue import Recipe, version_matches
from provision.distros import source_names
from provision.distros.debian import ArchiveIndex
from provision.distros.debian.kernel_headers import packaged_kernels
from provision.errors import NotFoundError
from provision.sources import Market, kind_of, offers


def suitable_versions(
    recipe: Recipe, offered: Sequence[str], request: Request
) -> tuple[list[str], list[str]]:
    """Return the offered versions that a request accepts, the best first.

    Args:
        recipe: The driver's recipe.
        offered: The versions that can be built, the newest first.
        request: What is wanted.

    Returns:
        All of them, and those of them that are known to build on the kernel.
    """
    wish = request.version
    if wish is None:
        found = list(offered)
    elif request.branches is not None:
        found = [v for branch in request.branches for v in offered if _is_of(v, branch)]
    else:
        found = [wish] if wish in offered else [v for v in offered if _is_of(v, wish)]
    if found == [wish]:
        # Who names a version gets it; whether it fits is asked afterwards.
        return found, found
    return found, [v for v in found if recipe.builds_on(version=v, kernel_release=request.kernel)]


def _is_of(version: str, branch: str) -> bool:
    """Whether a version belongs to a branch: ``535.261.03`` to ``535`` and to ``535.261``."""
    return version == branch or version.startswith(f"{branch}.")


def buildable_kernels(
    recipe: Recipe, version: str, index: ArchiveIndex, *, like: str | None = None
) -> list[str]:
    """Return the packaged kernels that a driver version is known to build on, newest first."""
    return [
        kernel
        for kernel in packaged_kernels(index, like=like)
        if recipe.builds_on(version=version, kernel_release=kernel)
    ]


def newest_kernel(recipe: Recipe, index: ArchiveIndex, *, flavour: str | None = None) -> str:
    """Return the newest packaged kernel that a driver is known to build on, in any version.

    Raises:
        NotFoundError: There is none.
    """
    distro = index.distro
    market = Market(f"{distro.id} {distro.version}", source_names(distro), index)
    found = offers(recipe, flavour or recipe.default_flavour, market)
    versions = [offer.version for offer in found]
    for kernel in packaged_kernels(index):
        if any(recipe.builds_on(version=v, kernel_release=kernel) for v in versions):
            return kernel
    raise NotFoundError(
        f"'{recipe.name}' is not known to build on any kernel that is packaged for"
        f" {market.distro}.",
        resolution="Add the kernels that it builds on to [[kernels]] of its driver.toml.",
        details="\n".join(
            [f"versions: {', '.join(versions) or 'none'}", *known_ranges(recipe, None)]
        ),
    )


def elsewhere(recipe: Recipe, flavour: str, version: str, market: Market) -> str | None:
    """Return where else a version or branch is offered, or was looked for, a line each."""
    lines = [
        f"the flavour '{other}' has it for {market.distro} (--flavour)"
        for other in recipe.flavours
        if other != flavour
        and any(_is_of(offer.version, version) for offer in offers(recipe, other, market))
    ]
    for variant in recipe.variants(None, flavour):
        source = variant.source
        listed = kind_of(source).versions(variant, None)
        if not source.fits(market.names) and any(_is_of(one, version) for one in listed):
            served = ", ".join(source.distros)
            lines.append(f"the source '{variant.label}' has it, for {served} only")
    places = looked_in(recipe, flavour, market)
    return "\n".join([*lines, *([places] if places else [])]) or None


def known_ranges(recipe: Recipe, version: str | None) -> list[str]:
    """Return what a recipe says about kernels, a line each; of one version only, or of all."""
    return [
        f"{row.versions or 'any version'}: kernels {row.kernels}"
        for row in recipe.kernels
        if version is None or version_matches(version, row.versions)
    ]


def choices(wanted: str, there: Iterable[str], *, also: Iterable[str] = ()) -> str:
    """Say what there is, and which of that may have been meant."""
    names = list(there)
    close = difflib.get_close_matches(wanted, [*names, *also], n=1, cutoff=0.5)
    guess = f"Did you mean '{close[0]}'? " if close else ""
    return f"{guess}There are {', '.join(names) or 'none'}."


def looked_in(recipe: Recipe, flavour: str, market: Market) -> str | None:
    """Return the archive's places, if a source of the flavour is packages in there."""
    variants = recipe.variants(market.names, flavour)
    if market.index is None or not any(variant.source.is_packaged for variant in variants):
        return None
    return "\n".join(["looked in:", *(f"  {place}" for place in market.index.places)])
