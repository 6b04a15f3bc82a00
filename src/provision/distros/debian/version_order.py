"""Debian's order of package versions."""

from __future__ import annotations

from typing import Protocol

from debian.debian_support import Version, version_compare


class VersionKey(Protocol):
    """Sorts as Debian orders versions."""

    def __lt__(self, other: VersionKey, /) -> bool: ...


def version_key(version: str) -> VersionKey:
    """Return a sort key: ``sorted(versions, key=version_key)`` puts the oldest first.

    Raises:
        ValueError: It is no version.

    Source: https://www.debian.org/doc/debian-policy/ch-controlfields.html#version
    """
    return Version(version)


def compare_versions(one: str, other: str) -> int:
    """Return a number below, equal to or above 0, as ``one`` is older, the same or newer."""
    return version_compare(one, other)


def upstream_version(version: str) -> str:
    """Return a version without epoch and Debian revision: ``1:2.0+ds-3`` → ``2.0+ds``."""
    return Version(version).upstream_version or version
