"""A distro's archive of packages: its layout, and the kernel headers and source packages in it.

Debian's flavours share ``linux-headers-VERSION-common``. Ubuntu's share ``linux-headers-ABI``, or
``linux-SOURCE-headers-ABI`` where the kernel has a source package of its own (``linux-aws``,
``linux-hwe-6.8``).

Source: https://kernel-team.pages.debian.net/kernel-handbook/ch-packaging.html and the control files
of Ubuntu's source packages linux, linux-hwe-6.8 and linux-aws (debian.master/control.d).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from debian.deb822 import Sources

from provision.distros.debian.apt_messages import superseded
from provision.distros.debian.archive_cache import SuiteCache
from provision.distros.debian.archive_index import ArchiveAccess, ArchiveIndex, suite_release
from provision.distros.debian.packages_file import IndexedPackage
from provision.distros.debian.relations import parse_depends, version_key
from provision.distros.debian.suites import ArchiveLayout
from provision.distros.known import release_of
from provision.errors import NotFoundError, ProvisionError
from provision.pin import DistroPin

_PREFIX = "linux-headers-"
# 6.1.0-47-cloud-amd64, 6.12.117+deb13-amd64, 6.1.0-0.deb11.5-amd64: version, then flavour.
# Of the characters that a version may have, so that it can be sorted as one.
_RELEASE = re.compile(
    r"(?P<version>[0-9][A-Za-z0-9.+~]*(?:-[0-9][A-Za-z0-9.+~]*)?)-(?P<flavour>[a-z][A-Za-z0-9.+~-]*)"
)
_NEIGHBOURS = 2


def layout_of(pin: DistroPin) -> ArchiveLayout:
    """Return how the archive of a release is laid out.

    Raises:
        NotFoundError: The distro has no such archive, or there are no data of it.
    """
    distro, _ = release_of(pin)
    data = distro.apt
    if data is None:
        raise NotFoundError(
            f"{distro.name} has no archive that apt reads.",
            resolution="Name a distro of Debian's family with --distro.",
        )
    return ArchiveLayout(
        origin=data.origin,
        keyrings=data.keyrings,
        keyring_package=data.keyring_package,
        components=data.components,
        enabled=data.enabled,
        codenames=tuple(release.codename for release in distro.releases),
        security_in_archive=data.security_in_archive,
    )


def uses_archive(pin: DistroPin) -> bool:
    """Return whether a release's packages are in an archive that apt reads."""
    return release_of(pin)[0].apt is not None


def require_headers(index: ArchiveIndex, kernel: str) -> None:
    """Refuse a kernel whose headers are not packaged, before an engine starts any work.

    Args:
        index: The archive of the distro that the kernel comes from.
        kernel: The kernel's release, as ``uname -r`` prints it.

    Raises:
        NotFoundError: The headers are not packaged there; says where to find them.
    """
    if index.package(f"{_PREFIX}{kernel}") is None:
        raise _no_headers(index, kernel)


def packaged_kernels(index: ArchiveIndex, *, like: str | None = None) -> list[str]:
    """Return the kernels whose headers are packaged, the newest first.

    Args:
        index: The archive. The first of its distro's rules for headers is about plain kernels.
        like: A kernel; only those of its flavour (``amd64``, ``cloud-amd64``, ``rt-amd64``) are
            listed. Without it, or if it has no flavour: the plain ones.
    """
    example = _RELEASE.fullmatch(like) if like else None
    plain = re.compile(release_of(index.distro)[0].headers[0].kernels)
    kernels = []
    for package in index.packages_matching(_PREFIX):
        match = _RELEASE.fullmatch(package.name.removeprefix(_PREFIX))
        if match is None or not _is_real(package, match["version"]):
            continue
        if match["flavour"] == example["flavour"] if example else plain.fullmatch(match[0]):
            kernels.append(match[0])
    return sorted(kernels, key=version_key, reverse=True)


def _is_real(package: IndexedPackage, version: str) -> bool:
    """Return whether a package holds headers itself.

    A package such as ``linux-headers-6.12-amd64`` is empty and depends on the real one.
    """
    shared = re.compile(rf"linux-(?:[a-z0-9.-]+-)?headers-{re.escape(version)}(?:-common.*)?")
    return any(
        shared.fullmatch(alternative.name)
        for group in parse_depends(package.depends)
        for alternative in group
    )


def _no_headers(index: ArchiveIndex, kernel: str) -> NotFoundError:
    distro, _ = release_of(index.distro)
    nearest = _nearest(kernel, packaged_kernels(index, like=kernel) or packaged_kernels(index))
    looked = [f"looked for {_PREFIX}{kernel} ({index.architecture}) in:"]
    return NotFoundError(
        f"No headers are packaged for the kernel {kernel} on {index.distro.id}"
        f" {index.distro.version}.",
        resolution=superseded(distro),
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
    try:
        position = bisect_left(
            sorted(kernels, key=version_key), version_key(kernel), key=version_key
        )
    except ValueError:
        return kernels[:_NEIGHBOURS]
    at = len(kernels) - position
    around = kernels[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS]
    return list(dict.fromkeys([*kernels[:1], *around]))


_COMPONENT = "main"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source package.

    Attributes:
        name: Its name.
        url: Its address.
        sha256: Its checksum, 64 hexadecimal digits.
        size: Bytes.
    """

    name: str
    url: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class SourcePackage:
    """A source package, as an archive's signed index describes it."""

    name: str
    version: str
    files: tuple[SourceFile, ...]

    def file(self, part: str) -> SourceFile:
        """Return the file with a part such as ``.orig.tar.`` in its name.

        Raises:
            NotFoundError: There is no such file, or more than one.
        """
        signature = (".asc", ".sig")
        found = [f for f in self.files if part in f.name and not f.name.endswith(signature)]
        if len(found) != 1:
            raise NotFoundError(
                f"The source package {self.name} {self.version} has {len(found)} files"
                f" '*{part}*', not one.",
                details="\n".join(file.name for file in self.files),
                resolution="Use another mirror: a package of this kind has exactly one.",
            )
        return found[0]


def find_sources(
    name: str,
    distro: DistroPin,
    layout: ArchiveLayout,
    access: ArchiveAccess,
) -> list[SourcePackage]:
    """Return the versions of a source package, the newest first; at least one.

    Args:
        name: Its name.
        distro: The distro.
        layout: How its archive is laid out.
        access: How the host reads it.

    Raises:
        NotFoundError: No mirror or keyring is known, or the distro has no such source package.
        UnreachableError: The archive can't be reached, and its index is not cached.
        SignatureError: Its index is not signed by a trusted key.
    """
    addresses = access.suites(distro, layout)
    found: list[SourcePackage] = []
    with access.reading():
        for address in addresses:
            cache, release = suite_release(SuiteCache(address, access.folder))
            text = release and cache.sources(release, _COMPONENT, access.progress)
            found += _packages(text, name, address.uri) if text else ()
    if not found:
        raise NotFoundError(
            f"{distro.id} {distro.version} has no source package '{name}'.",
            resolution="A partial mirror may lack sources; name a complete one in"
            " /etc/provision/provision.toml.",
            details="\n".join(f"looked in {address}" for address in addresses),
        )
    return sorted(found, key=lambda package: version_key(package.version), reverse=True)


def _packages(text: bytes, name: str, uri: str) -> Iterator[SourcePackage]:
    """Yield a package's versions; of some 35,000 entries, only those of the package are parsed.

    Raises:
        ProvisionError: An entry of the package lacks a field.
    """
    head = f"Package: {name}\n".encode()
    for stanza in text.split(b"\n\n"):
        if stanza.startswith(head):
            try:
                yield _package(Sources(stanza), name, uri)
            except (KeyError, ValueError) as error:
                raise ProvisionError(
                    f"The source index of '{uri}' has a broken entry (package '{name}').",
                    resolution="Try again later, or use another mirror.",
                    details=f"{type(error).__name__}: {error}",
                ) from error


def _package(fields: Sources, name: str, uri: str) -> SourcePackage:
    version = str(fields["Version"])
    # Raises ValueError for a version that could not be sorted.
    version_key(version)
    address = f"{uri}/{fields['Directory']}"
    files = tuple(
        SourceFile(row["name"], f"{address}/{row['name']}", row["sha256"], int(row["size"]))
        for row in fields["Checksums-Sha256"]
    )
    return SourcePackage(name, version, files)
