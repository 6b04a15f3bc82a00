"""The distros that drivers are built for: data by distro, one module a family. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping

from provision.distros.debian.apt import Apt
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
    archive_of,
    data_files,
    distro_named,
    find_distro,
    known_distros,
    release_of,
    source_names,
    uses_archive,
)
from provision.distros.rpm_based.dnf import Dnf
from provision.distros.rpm_based.zypper import Zypper

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
    "archive_of",
    "data_files",
    "distro_named",
    "family_of",
    "find_distro",
    "known_distros",
    "release_of",
    "source_names",
    "uses_archive",
]

_FAMILIES: Mapping[str, Family] = {"apt": Apt(), "dnf": Dnf(), "zypper": Zypper()}


def family_of(distro: Distro) -> Family:
    """Return the module that serves a distro."""
    return _FAMILIES[distro.family]
