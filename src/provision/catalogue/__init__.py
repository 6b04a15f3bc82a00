"""The catalogue of drivers: a folder each, with a ``driver.toml`` and its patches."""

from __future__ import annotations

from provision.catalogue.fields import (
    PLACEHOLDERS,
    Hardware,
    Installed,
    InstalledFeature,
    KernelRange,
    Patch,
    PciMatch,
    version_matches,
)
from provision.catalogue.folders import (
    Catalogue,
    Entry,
    catalogue_folders,
    load_entry,
)
from provision.catalogue.recipe import Flavour, Recipe, Variant
from provision.catalogue.source_models import (
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
    "Catalogue",
    "DebSource",
    "DkmsSource",
    "Entry",
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
    "catalogue_folders",
    "load_entry",
    "version_matches",
]
