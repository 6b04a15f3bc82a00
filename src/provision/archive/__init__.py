"""The index of a Debian archive: which packages a distro has, at which versions.

Only what is signed by the distro's keys is believed. Nothing here knows a mirror: the machine's
own apt configuration says where packages come from, or provision.toml.
"""

from __future__ import annotations

from provision.archive.dependencies import Alternative, parse_depends
from provision.archive.index import ArchiveIndex, Suite, default_cache, open_index
from provision.archive.layout import ArchiveLayout, debian_architecture
from provision.archive.ordering import compare_versions, upstream_version, version_key
from provision.archive.packages import IndexedPackage
from provision.archive.source_packages import SourceFile, SourcePackage, find_sources

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
