"""What the archive of a distro has, by apt's word, and which kernels' headers are in it.

A question is a list of words: names of packages, and beginnings of names (``linux-headers-*``). apt
answers it with ``madison``, which says where each version is, and ``show``, which says the rest.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from provision.distros.debian.relations import VersionKey, is_version, parse_depends, version_key
from provision.distros.distro import Distro
from provision.distros.family import Repository
from provision.distros.known import release_of
from provision.errors import NotFoundError, ProvisionError
from provision.host.kernels import kernel_order
from provision.pin import DistroPin

# name | version | URI suite/component architecture Packages
_PLACE = re.compile(
    r"\s*(?P<name>\S+) \| +(?P<version>\S+) \| (?P<uri>\S+)"
    r" (?P<suite>\S+)/(?P<component>[^\s/]+) \S+ Packages"
)
_FIELDS = ("Package", "Version", "Architecture", "Filename", "SHA256", "Size", "Depends")
_LOGIN = re.compile(r"//[^/@]*@")
_SIZE = re.compile(r"[0-9]{1,15}")
# apt_preferences(5): packages of such a suite, which says NotAutomatic, come after all others.
_BACKPORTS = "-backports"


@dataclass(frozen=True, slots=True)
class IndexedPackage:
    """A package that an archive has."""

    name: str
    version: str
    sha256: str
    size: int
    depends: str
    suite: str
    component: str
    url: str


class ArchiveIndex:
    """The packages that can be installed of a distro.

    Args:
        words: What is asked for at the first query; a name or prefix that is not among them costs
            a further question.
    """

    def __init__(
        self,
        *,
        distro: DistroPin,
        architecture: str,
        suites: Sequence[Repository],
        components: Sequence[str],
        words: Iterable[str],
        answer: Callable[[tuple[str, ...]], bytes],
    ) -> None:
        self.distro = distro
        self.architecture = architecture
        self.addresses = tuple(" ".join([*suite.urls, suite.id, *components]) for suite in suites)
        self._first = frozenset(words)
        self._answer = answer
        # apt names no passwords.
        self._uris = {_LOGIN.sub("//", url): url for suite in suites for url in suite.urls}
        self._known: set[str] = set()
        self._packages: dict[str, list[IndexedPackage]] = {}

    @property
    def is_read(self) -> bool:
        """Whether the first question was answered."""
        return bool(self._known)

    def package(self, name: str) -> IndexedPackage | None:
        """Return the newest version of a package; None if it is missing."""
        return next(iter(self.versions(name)), None)

    def versions(self, name: str) -> list[IndexedPackage]:
        """Return every version of a package, the newest first."""
        self.ask(name)
        return self._packages.get(name, [])

    def packages_matching(self, prefix: str) -> list[IndexedPackage]:
        """Return the newest version of each package whose name starts with a text, by name."""
        self.ask(f"{prefix}*")
        return [
            self._packages[name][0] for name in sorted(self._packages) if name.startswith(prefix)
        ]

    def ask(self, *words: str) -> None:
        """Ask for packages, all at once, unless that was done before."""
        missing = {word for word in words if not any(_covers(known, word) for known in self._known)}
        if not missing:
            return
        if not self._known:
            missing |= self._first
        for package in parse_packages(self._answer(tuple(sorted(missing))), self._uris):
            versions = self._packages.setdefault(package.name, [])
            if package not in versions:
                versions.append(package)
                versions.sort(key=_key, reverse=True)
        self._known |= missing


def _covers(known: str, word: str) -> bool:
    return known == word or (known.endswith("*") and word.startswith(known[:-1]))


def packages_script(words: Iterable[str]) -> str:
    """Return commands of the shell that print apt's answer; ``apt_cache`` runs apt-cache."""
    names = [shlex.quote(word) for word in words if not word.endswith("*")]
    names += [
        f"$(apt_cache pkgnames {shlex.quote(word.removesuffix('*'))})"
        for word in words
        if word.endswith("*")
    ]
    fields = "|".join(_FIELDS)
    return f"""\
set -- {" ".join(names)}
places=$(apt_cache madison "$@")
printf '%s\\n\\n' "$places"
if [ -n "$places" ]; then
    shown=$(apt_cache show "$@")
    printf '%s\\n' "$shown" | grep -E '^(({fields}): |$)'
fi"""


def parse_packages(
    output: bytes, uris: Mapping[str, str] = MappingProxyType({})
) -> list[IndexedPackage]:
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


def _package(fields: dict[str, str], place: re.Match[str], uri: str) -> IndexedPackage:
    name, version = place["name"], place["version"]
    if not (_SIZE.fullmatch(fields.get("Size", "")) and is_version(version)):
        raise ProvisionError(
            f"The package index of {place['suite']} has a broken entry: '{name}' in the version"
            f" '{version}'.",
            resolution="Use another mirror.",
        )
    return IndexedPackage(
        name=name,
        version=version,
        sha256=fields.get("SHA256", ""),
        size=int(fields["Size"]),
        depends=fields.get("Depends", ""),
        suite=place["suite"],
        component=place["component"],
        url=f"{uri}/{fields['Filename']}",
    )


def _key(package: IndexedPackage) -> tuple[bool, VersionKey]:
    """Return the place of a package among others of its name."""
    return not package.suite.endswith(_BACKPORTS), version_key(package.version)


HEADERS = "linux-headers-"
# 6.1.0-47-cloud-amd64, 6.12.117+deb13-amd64, 6.1.0-0.deb11.5-amd64: version, then flavour.
_RELEASE = re.compile(
    r"(?P<version>[0-9][A-Za-z0-9.+~]*(?:-[0-9][A-Za-z0-9.+~]*)?)-(?P<flavour>[a-z][A-Za-z0-9.+~-]*)"
)


def kernels_of(
    packages: Iterable[IndexedPackage], distro: Distro, *, like: str | None = None
) -> list[str]:
    """Return the kernels whose headers are among packages, the newest first.

    Args:
        like: A kernel; only those of its flavour (``amd64``, ``cloud-amd64``, ``rt-amd64``) are
            listed. Without it, or if it has no flavour: the plain ones.
    """
    example = _RELEASE.fullmatch(like) if like else None
    plain = re.compile(distro.headers[0].kernels)
    kernels = set()
    for package in packages:
        match = _RELEASE.fullmatch(package.name.removeprefix(HEADERS))
        if match is None or not _is_real(package, match["version"]):
            continue
        if match["flavour"] == example["flavour"] if example else plain.fullmatch(match[0]):
            kernels.add(match[0])
    return sorted(kernels, key=kernel_order, reverse=True)


def _is_real(package: IndexedPackage, version: str) -> bool:
    """Return whether a package holds headers itself.

    A package such as ``linux-headers-6.12-amd64`` is empty and depends on the real one.
    """
    shared = re.compile(rf"linux-(?:[a-z0-9.-]+-)?headers-{re.escape(version)}(?:-common.*)?")
    return any(shared.fullmatch(name) for group in parse_depends(package.depends) for name in group)


_NEIGHBOURS = 2


def superseded(distro: Distro) -> str:
    """Return how to get at packages that an archive has dropped."""
    where = " ".join(
        f"That is {archive.name} ({archive.url}): {archive.hint}" for archive in distro.archives
    )
    return (
        "Headers may come later than their kernel: try again then ('provision apply' and its timer"
        " do). If the distro has dropped them, boot a kernel that is packaged (--kernel builds for"
        f" it), or take them from where superseded packages stay. {where}"
    ).rstrip()


_ELSEWHERE = (
    "The distro packages no kernel of this kind. Install the headers from where the kernel came"
    " from, and name their folder under [[trees]] in /etc/provision/provision.toml: kernels, kind ="
    ' "prepared", path = "/usr/src/linux-headers-{kernel}" (docs/how-to/kernel-trees.md).'
)


def require_headers(index: ArchiveIndex, kernel: str) -> None:
    """Refuse a kernel whose headers are not packaged, before an engine starts any work."""
    if index.package(f"{HEADERS}{kernel}") is None:
        raise _no_headers(index, kernel)


def packaged_kernels(index: ArchiveIndex, *, like: str | None = None) -> list[str]:
    """Return the kernels whose headers an archive has, the newest first; as ``kernels_of``."""
    distro, _ = release_of(index.distro)
    return kernels_of(index.packages_matching(HEADERS), distro, like=like)


def _no_headers(index: ArchiveIndex, kernel: str) -> NotFoundError:
    distro, _ = release_of(index.distro)
    similar = packaged_kernels(index, like=kernel)
    nearest = _nearest(kernel, similar or packaged_kernels(index))
    looked = [f"looked for {HEADERS}{kernel} ({index.architecture}) in:"]
    return NotFoundError(
        f"No headers are packaged for the kernel {kernel} on {index.distro.id}"
        f" {index.distro.version}.",
        resolution=superseded(distro) if similar and _RELEASE.fullmatch(kernel) else _ELSEWHERE,
        details="\n".join(
            [
                *looked,
                *(f"  {place}" for place in index.addresses),
                "nearest kernels that are packaged there:",
                *(f"  {name}" for name in nearest or ["none"]),
            ]
        ),
    )


def _nearest(kernel: str, kernels: list[str]) -> list[str]:
    """Return the newest kernels, and those just above and below another, the newest first."""
    position = bisect_left(kernels[::-1], kernel_order(kernel), key=kernel_order)
    at = len(kernels) - position
    around = kernels[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS]
    return list(dict.fromkeys([*kernels[:1], *around]))
