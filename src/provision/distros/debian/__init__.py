"""The index of a Debian archive: which packages a distro has, at which versions.

Only what is signed by the distro's keys is believed. Nothing here knows a mirror: the machine's
own apt configuration says where packages come from, or provision.toml.
"""

from __future__ import annotations

from provision.distros.debian.archive_index import ArchiveIndex, Suite, default_cache, open_index
from provision.distros.debian.archive_layout import ArchiveLayout, debian_architecture
from provision.distros.debian.dependencies import Alternative, parse_depends
from provision.distros.debian.packages_file import IndexedPackage
from provision.distros.debian.source_packages import SourceFile, SourcePackage, find_sources
from provision.distros.debian.version_order import compare_versions, upstream_version, version_key

__all__ = [
    "Alternative",
    "ArchiveIndex",
    "ArchiveLayout",
    "IndexedPackage",
    "SourceFile",
    "SourcePackage",
    "Suite",
    "compare_versions",
    "debian_architecture",
    "default_cache",
    "find_sources",
    "open_index",
    "parse_depends",
    "upstream_version",
    "version_key",
]
