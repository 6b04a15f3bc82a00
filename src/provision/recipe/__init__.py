"""The recipe of a driver, ``driver.toml``: data types, and which source serves a distro."""

from __future__ import annotations

from provision.recipe.fields import PLACEHOLDERS, version_matches
from provision.recipe.model import (
    Flavour,
    Hardware,
    Installed,
    InstalledFeature,
    KernelRange,
    Patch,
    PciMatch,
    Recipe,
    Variant,
)
from provision.recipe.source import (
    ArchiveRelease,
    ArchiveReleases,
    Build,
    DebSource,
    GitRelease,
    GitReleases,
    RecipeSource,
    RunfileRelease,
    RunfileReleases,
    Source,
    UserFile,
)

__all__ = [
    "PLACEHOLDERS",
    "ArchiveRelease",
    "ArchiveReleases",
    "Build",
    "DebSource",
    "Flavour",
    "GitRelease",
    "GitReleases",
    "Hardware",
    "Installed",
    "InstalledFeature",
    "KernelRange",
    "Patch",
    "PciMatch",
    "Recipe",
    "RecipeSource",
    "RunfileRelease",
    "RunfileReleases",
    "Source",
    "UserFile",
    "Variant",
    "version_matches",
]
