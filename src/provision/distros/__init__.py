"""The distros that drivers are built for: data by distro, one module a family. Starts nothing."""

from __future__ import annotations

from functools import cache

from provision.distros.distro import (
    Distro,
    Entitlement,
    Proof,
    Release,
    all_distros,
    archive_of,
    distro_named,
    distro_on,
    find_distro,
    known_distros,
    release_of,
    source_names,
    uses_archive,
)
from provision.distros.family import (
    WORK,
    Family,
    HeaderQuery,
    Package,
    Repository,
    Script,
    SolveRequest,
    SolverFailure,
    Spec,
    Toolchain,
    headers_of,
)

__all__ = [
    "WORK",
    "Distro",
    "Entitlement",
    "Family",
    "HeaderQuery",
    "Package",
    "Proof",
    "Release",
    "Repository",
    "Script",
    "SolveRequest",
    "SolverFailure",
    "Spec",
    "Toolchain",
    "all_distros",
    "archive_of",
    "distro_named",
    "distro_on",
    "family_of",
    "find_distro",
    "headers_of",
    "known_distros",
    "release_of",
    "source_names",
    "uses_archive",
]


def family_of(distro: Distro) -> Family:
    """Return the module that serves a distro.

    Raises:
        KeyError: The distro has no package manager: ``tree``.
    """
    return _family(distro.family)


@cache
def _family(name: str) -> Family:
    match name:
        case "apt":
            from provision.distros.apt import Apt  # noqa: PLC0415 - most runs build nothing

            return Apt()
        case "dnf":
            from provision.distros.dnf import Dnf  # noqa: PLC0415 - as above

            return Dnf()
        case "zypper":
            from provision.distros.zypper import Zypper  # noqa: PLC0415 - as above

            return Zypper()
    raise KeyError(name)
