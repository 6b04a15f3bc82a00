"""A distro's archive of packages: its layout, and the headers of kernels in it."""

from __future__ import annotations

from bisect import bisect_left

from provision.distros.debian.apt_messages import superseded
from provision.distros.debian.archive_index import ArchiveIndex
from provision.distros.debian.kernels import HEADERS, kernels_of
from provision.distros.debian.relations import version_key
from provision.distros.debian.suites import ArchiveLayout
from provision.distros.known import release_of
from provision.errors import NotFoundError
from provision.pin import DistroPin

_NEIGHBOURS = 2


def layout_of(pin: DistroPin) -> ArchiveLayout:
    """Return how the archive of a release is laid out."""
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
    """Refuse a kernel whose headers are not packaged, before an engine starts any work."""
    if index.package(f"{HEADERS}{kernel}") is None:
        raise _no_headers(index, kernel)


def packaged_kernels(index: ArchiveIndex, *, like: str | None = None) -> list[str]:
    """Return the kernels whose headers an archive has, the newest first; as ``kernels_of``."""
    distro, _ = release_of(index.distro)
    return kernels_of(index.packages_matching(HEADERS), distro, like=like)


def _no_headers(index: ArchiveIndex, kernel: str) -> NotFoundError:
    distro, _ = release_of(index.distro)
    nearest = _nearest(kernel, packaged_kernels(index, like=kernel) or packaged_kernels(index))
    looked = [f"looked for {HEADERS}{kernel} ({index.architecture}) in:"]
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
