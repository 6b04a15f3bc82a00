"""Debian's order of package versions, and the relations of a Depends field."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from provision.errors import ProvisionError

# What python-debian cannot parse it hands back as a name.
_WRITE = "Write it as NAME or NAME (>= VERSION)."
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


@dataclass(frozen=True, slots=True)
class Alternative:
    """One package that satisfies a dependency, with a condition on its version or none."""

    name: str
    relation: str | None = None
    version: str | None = None

    def accepts(self, version: str) -> bool:
        """Return whether a version of the package satisfies the dependency."""
        if self.relation is None or self.version is None:
            return True
        try:
            order = compare_versions(version, self.version)
        except ValueError as error:
            raise ProvisionError(
                f"'{self.name} ({self.relation} {self.version})' is no package relation: {error}.",
                resolution=_WRITE,
            ) from error
        known = {
            "<<": order < 0,
            "<=": order <= 0,
            "=": order == 0,
            ">=": order >= 0,
            ">>": order > 0,
        }
        if self.relation not in known:
            raise ProvisionError(
                f"'{self.name} ({self.relation} {self.version})' is no package relation.",
                resolution=_WRITE,
            )
        return known[self.relation]


def parse_depends(text: str) -> tuple[tuple[Alternative, ...], ...]:
    """Return the dependencies of a Depends field; of each, the packages that satisfy it.

    Source: https://www.debian.org/doc/debian-policy/ch-relationships.html
    """
    from debian.deb822 import PkgRelation  # noqa: PLC0415 - as above

    if not text.strip():
        return ()
    groups = PkgRelation.parse_relations(text)
    return tuple(
        tuple(_alternative(part["name"], part.get("version"), text) for part in group)
        for group in groups
    )


def _alternative(name: str, condition: tuple[str, str] | None, text: str) -> Alternative:
    if not _NAME.fullmatch(name):
        raise ProvisionError(f"'{name}' is no package relation (in '{text}').", resolution=_WRITE)
    return Alternative(name, *(condition or (None, None)))
