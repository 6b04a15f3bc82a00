"""The recipe of a driver, ``driver.toml``: data types, and which source serves a distro."""

from __future__ import annotations

from provision.recipe.fields import PLACEHOLDERS, version_matches
from provision.recipe.model import Flavour, Recipe, Variant
from provision.recipe.parts import (
    Hardware,
    Installed,
    InstalledFeature,
    KernelRange,
    Patch,
    PciMatch,
)
from provision.recipe.source import (
    GIT_TOOLS,
    ArchiveRelease,
    ArchiveReleases,
    Build,
    DebSource,
    DkmsSource,
    GitRelease,
    GitReleases,
    RecipeSource,
    RunfileRelease,
    RunfileReleases,
    Source,
    UserFile,
)

__all__ = [
    "GIT_TOOLS",
    "PLACEHOLDERS",
    "ArchiveRelease",
    "ArchiveReleases",
    "Build",
    "DebSource",
    "DkmsSource",
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
