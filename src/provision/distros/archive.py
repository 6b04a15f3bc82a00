"""Packages of a distro's archive as apt lists them, and Debian's order of versions."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from provision.distros.family import Repository
from provision.errors import ProvisionError

# Name, architecture, condition, architectures and build profiles: deb-control(5).
_RELATION = re.compile(
    r"\s*(?P<name>[a-z0-9][a-z0-9+.-]+)(?::[a-z0-9-]+)?"
    r"\s*(?:\([^()]*\))?\s*(?:\[[^\[\]]*\])?\s*(?:<[^<>]*>\s*)*"
)


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


def parse_depends(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the dependencies of a Depends field; of each, the packages that satisfy it."""
    if not text.strip():
        return ()
    groups = [[_RELATION.fullmatch(part) for part in group.split("|")] for group in text.split(",")]
    if not all(part for group in groups for part in group):
        raise ProvisionError(
            f"'{text}' are no package relations.",
            resolution="Write each as NAME or NAME (>= VERSION).",
        )
    return tuple(tuple(part["name"] for part in group if part) for group in groups)


# name | version | URI suite/component architecture Packages
_PLACE = re.compile(
    r"\s*(?P<name>\S+) \| +(?P<version>\S+) \| (?P<uri>\S+)"
    r" (?P<suite>\S+)/(?P<component>[^\s/]+) \S+ Packages"
)
_FIELDS = "Package|Version|Filename|SHA256|Size|Depends"
_LOGIN = re.compile(r"//[^/@]*@")
_SIZE = re.compile(r"[0-9]{1,15}")
# apt_preferences(5): packages of such a suite, which says NotAutomatic, come after all others.
_BACKPORTS = "-backports"


class ArchivePackage(NamedTuple):
    """A version of a package that an archive has."""

    name: str
    version: str
    sha256: str
    depends: str
    suite: str
    component: str
    url: str


class Archive:
    """The packages of a distro's archive that drivers are made from.

    Args:
        distro: Its name.
        words: What the first question asks besides; a name that is not among them costs a further
            question.
        answer: Returns what ``packages_script`` prints for names.
    """

    def __init__(
        self,
        distro: str,
        suites: Sequence[Repository],
        words: Iterable[str],
        answer: Callable[[tuple[str, ...]], bytes],
    ) -> None:
        self.distro = distro
        self.addresses = tuple(
            " ".join([*suite.urls, suite.id, *suite.components]) for suite in suites
        )
        self._first = frozenset(words)
        self._answer = answer
        # apt names no passwords.
        self._uris = {_LOGIN.sub("//", url): url for suite in suites for url in suite.urls}
        self._asked: set[str] = set()
        self._packages: dict[str, list[ArchivePackage]] = {}

    def package(self, name: str) -> ArchivePackage | None:
        """Return the newest version of a package; None if it is missing."""
        return next(iter(self.versions(name)), None)

    def versions(self, name: str) -> list[ArchivePackage]:
        """Return every version of a package, the newest first."""
        self.ask(name)
        return self._packages.get(name, [])

    def ask(self, *names: str) -> None:
        """Ask for packages, all at once, unless that was done before."""
        missing = {*names} - self._asked
        if not missing:
            return
        if not self._asked:
            missing |= self._first
        for package in parse_packages(self._answer(tuple(sorted(missing))), self._uris):
            versions = self._packages.setdefault(package.name, [])
            if package not in versions:
                versions.append(package)
                versions.sort(key=_key, reverse=True)
        self._asked |= missing


def packages_script(names: Iterable[str]) -> str:
    """Return commands of the shell that print apt's answer; ``apt_cache`` runs apt-cache."""
    return f"""\
set -- {" ".join(map(shlex.quote, names))}
places=$(apt_cache madison "$@")
printf '%s\\n\\n' "$places"
if [ -n "$places" ]; then
    shown=$(apt_cache show "$@")
    printf '%s\\n' "$shown" | grep -E '^(({_FIELDS}): |$)'
fi"""


def parse_packages(output: bytes, uris: Mapping[str, str]) -> list[ArchivePackage]:
    """Return the packages of an answer.

    Args:
        uris: Addresses of archives with user and password, by those without.
    """
    text = output.decode(errors="replace")
    listed, _, shown = text.partition("\n\n")
    places: dict[tuple[str, str], re.Match[str]] = {}
    for line in listed.splitlines():
        if match := _PLACE.fullmatch(line):
            # Of several places, apt shows what the first one says.
            places.setdefault((match["name"], match["version"]), match)
    packages = []
    for stanza in shown.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        place = places.get((fields.get("Package", ""), fields.get("Version", "")))
        # An installed version that the archive no longer has is in no place.
        if place is not None and "Filename" in fields:
            uri = place["uri"].rstrip("/")
            packages.append(_package(fields, place, uris.get(uri, uri)))
    return packages


def _package(fields: dict[str, str], place: re.Match[str], uri: str) -> ArchivePackage:
    name, version = place["name"], place["version"]
    if not (_SIZE.fullmatch(fields.get("Size", "")) and is_version(version)):
        raise ProvisionError(
            f"The package index of {place['suite']} has a broken entry: '{name}' in the version"
            f" '{version}'.",
            resolution="Use another mirror.",
        )
    return ArchivePackage(
        name=name,
        version=version,
        sha256=fields.get("SHA256", ""),
        depends=fields.get("Depends", ""),
        suite=place["suite"],
        component=place["component"],
        url=f"{uri}/{fields['Filename']}",
    )


def _key(package: ArchivePackage) -> tuple[bool, VersionKey]:
    return not package.suite.endswith(_BACKPORTS), version_key(package.version)
