"""The distros that drivers are built for: data by distro, one module a family.

Here is Debian's order of versions, by which vendors number theirs too.
"""

from __future__ import annotations

import re
import sys

# A run of other characters, and the number after it.
_PART = re.compile(r"([^0-9]*)([0-9]*)")
_VERSION = re.compile(r"([0-9]+:)?[A-Za-z0-9][A-Za-z0-9.+:~-]*")
_Parts = list[tuple[tuple[int, ...], int]]
VersionKey = tuple[int, "_Parts", "_Parts"]


def version_key(version: str) -> VersionKey:
    """Return a sort key: ``sorted(versions, key=version_key)`` puts the oldest first.

    Vendors' versions have characters that Debian's lack, such as ``_``: each has a place.

    Source: https://www.debian.org/doc/debian-policy/ch-controlfields.html#version
    """
    epoch, upstream, revision = _split(version)
    return epoch, _parts(upstream), _parts(revision)


def _split(version: str) -> tuple[int, str, str]:
    epoch, colon, rest = version.partition(":")
    if not (colon and epoch.isascii() and epoch.isdigit()):
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    return (int(epoch), upstream, revision) if dash else (int(epoch), rest, "")


def _parts(text: str) -> _Parts:
    # The end of a text is greater than a tilde, and less than anything else. No number is 0.
    return [
        ((*map(_place, word), 0), int(number or 0)) for word, number in _PART.findall(text or "0")
    ]


def _place(character: str) -> int:
    if character == "~":
        return -1
    # Letters come before everything else.
    return ord(character) + (0 if character.isalpha() else sys.maxunicode)


def is_version(text: str) -> bool:
    """Return whether a text is a version of a Debian package."""
    return _VERSION.fullmatch(text) is not None


def compare_versions(one: str, other: str) -> int:
    """Return a number below, equal to or above 0, as ``one`` is older, the same or newer."""
    first, second = version_key(one), version_key(other)
    return (first > second) - (first < second)


def upstream_version(version: str) -> str:
    """Return a version without epoch and Debian revision: ``1:2.0+ds-3`` → ``2.0+ds``."""
    return _split(version)[1]
