"""The family of apt: Debian and Ubuntu, and what the index of an archive says of its packages.

Only what the distro's keys have signed is trusted. Nothing here knows a mirror: the machine's
own apt configuration says where packages come from, or provision.toml.
"""

from __future__ import annotations

from provision.distros.debian.archive_index import (
    ArchiveAccess,
    ArchiveIndex,
    Suite,
    default_cache,
    open_index,
)
from provision.distros.debian.packages_file import IndexedPackage
from provision.distros.debian.relations import (
    Alternative,
    compare_versions,
    parse_depends,
    upstream_version,
    version_key,
)
from provision.distros.debian.suites import ArchiveLayout, debian_architecture

__all__ = [
    "Alternative",
    "ArchiveAccess",
    "ArchiveIndex",
    "ArchiveLayout",
    "IndexedPackage",
    "Suite",
    "compare_versions",
    "debian_architecture",
    "default_cache",
    "open_index",
    "parse_depends",
    "upstream_version",
    "version_key",
]
