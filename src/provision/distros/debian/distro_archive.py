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

from provision.distros.debian.apt_messages import superseded
from provision.distros.debian.archive_index import ArchiveIndex
from provision.distros.debian.packages_file import IndexedPackage
from provision.distros.debian.relations import parse_depends, version_key
from provision.distros.debian.suites import ArchiveLayout
from provision.distros.known import release_of
from provision.errors import NotFoundError
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
