"""The distros that drivers are built for: data by distro, one module a family. Starts nothing."""

from __future__ import annotations

from provision.distros.distro import Distro, Entitlement, Proof, Release
from provision.distros.family import (
    WORK,
    Failure,
    Family,
    HeaderQuery,
    Package,
    Repository,
    Script,
    Spec,
)
from provision.distros.known import (
    all_distros,
    distro_named,
    family_of,
    find_distro,
    known_distros,
    release_of,
    source_names,
)

__all__ = [
    "WORK",
    "Distro",
    "Entitlement",
    "Failure",
    "Family",
    "HeaderQuery",
    "Package",
    "Proof",
    "Release",
    "Repository",
    "Script",
    "Spec",
    "all_distros",
    "distro_named",
    "family_of",
    "find_distro",
    "known_distros",
    "release_of",
    "source_names",
]
