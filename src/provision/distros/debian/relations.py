"""Debian's order of package versions, and the relations of a Depends field."""

from __future__ import annotations

import re
from typing import Protocol

from provision.errors import ProvisionError

_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")


class VersionKey(Protocol):
    """Sorts as Debian orders versions."""

    def __lt__(self, other: VersionKey, /) -> bool: ...


def version_key(version: str) -> VersionKey:
    """Return a sort key: ``sorted(versions, key=version_key)`` puts the oldest first.

    Source: https://www.debian.org/doc/debian-policy/ch-controlfields.html#version
    """
    from debian.debian_support import Version  # noqa: PLC0415 - 5 % of a run with nothing to do

    return Version(version)


def is_version(text: str) -> bool:
    """Return whether a text is a version."""
    try:
        version_key(text)
    except ValueError:
        return False
    return True


def compare_versions(one: str, other: str) -> int:
    """Return a number below, equal to or above 0, as ``one`` is older, the same or newer."""
    from debian.debian_support import version_compare  # noqa: PLC0415 - as above

    return version_compare(one, other)


def upstream_version(version: str) -> str:
    """Return a version without epoch and Debian revision: ``1:2.0+ds-3`` → ``2.0+ds``."""
    from debian.debian_support import Version  # noqa: PLC0415 - as above

    return Version(version).upstream_version or version


def parse_depends(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the dependencies of a Depends field; of each, the packages that satisfy it."""
    from debian.deb822 import PkgRelation  # noqa: PLC0415 - as above

    if not text.strip():
        return ()
    groups = PkgRelation.parse_relations(text)
    found = tuple(tuple(str(part["name"]) for part in group) for group in groups)
    # What python-debian cannot parse it hands back as a name.
    wrong = [name for group in found for name in group if not _NAME.fullmatch(name)]
    if wrong:
        raise ProvisionError(
            f"'{wrong[0]}' is no package relation (in '{text}').",
            resolution="Write it as NAME or NAME (>= VERSION).",
        )
    return found
