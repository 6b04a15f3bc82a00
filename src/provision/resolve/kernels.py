"""Which kernels a driver builds on."""

from __future__ import annotations

from provision.archive import ArchiveIndex
from provision.distros import source_names
from provision.distros.apt_headers import packaged_kernels
from provision.errors import NotFoundError
from provision.recipe import Recipe, version_matches
from provision.sources import Market, offers


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
