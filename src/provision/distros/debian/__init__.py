"""The family of apt: Debian and Ubuntu, and what the index of an archive says of its packages.

Only what the distro's keys have signed is trusted. Nothing here knows a mirror: the machine's
own apt configuration says where packages come from, or provision.toml.
"""

from __future__ import annotations

from provision.distros.debian.archive import ArchiveIndex, IndexedPackage
from provision.distros.debian.relations import (
    compare_versions,
    parse_depends,
    upstream_version,
    version_key,
)

__all__ = [
    "ArchiveIndex",
    "IndexedPackage",
    "compare_versions",
    "parse_depends",
    "upstream_version",
    "version_key",
]
