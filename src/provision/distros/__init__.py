"""The distros that drivers are built for: data by distro, one module a family. Starts nothing."""

from __future__ import annotations

from provision.distros.known import (
    all_distros,
    distro_named,
    family_of,
    find_distro,
    known_distros,
    release_of,
    source_names,
)
from provision.distros.model import (
    WORK,
    Distro,
    Entitlement,
    Failure,
    Family,
    HeaderQuery,
    Package,
    Proof,
    Release,
    RemoteFile,
    Repository,
    Script,
    Spec,
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
    "RemoteFile",
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
