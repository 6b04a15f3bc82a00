"""Which versions and kernels of a driver go together."""

from __future__ import annotations

from collections.abc import Sequence

from provision.archive import ArchiveIndex
from provision.distros import source_names
from provision.distros.apt_headers import packaged_kernels
from provision.errors import NotFoundError
from provision.recipe import Recipe, version_matches
from provision.resolve.request import Request
from provision.sources import Market, offers


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


def known_ranges(recipe: Recipe, version: str | None) -> list[str]:
    """Return what a recipe says about kernels, a line each; of one version only, or of all."""
    return [
        f"{row.versions or 'any version'}: kernels {row.kernels}"
        for row in recipe.kernels
        if version is None or version_matches(version, row.versions)
    ]
