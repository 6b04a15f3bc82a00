"""Packages of a distro's archive as apt lists them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from provision.distros import VersionKey, is_version, version_key
from provision.distros.family import Repository
from provision.errors import ProvisionError

# Name, architecture, condition, architectures and build profiles: deb-control(5).
_RELATION = re.compile(
    r"\s*(?P<name>[a-z0-9][a-z0-9+.-]+)(?::[a-z0-9-]+)?"
    r"\s*(?:\([^()]*\))?\s*(?:\[[^\[\]]*\])?\s*(?:<[^<>]*>\s*)*"
)


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
