"""What the data file of a distro says about its archive of packages, for the family of apt."""

from __future__ import annotations

from provision.distros.debian.archive_layout import ArchiveLayout
from provision.distros.known import release_of
from provision.errors import NotFoundError
from provision.pin import DistroPin


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
    """Return whether a release's packages are in an archive that is read here."""
    return release_of(pin)[0].apt is not None
