"""Headers of a superseded kernel in the archive of its distro's build system, by their address.

koji keeps every build: ``NAME/VERSION/RELEASE/data/signed/KEY/ARCH/FILE`` is the copy that a key of
the distro has signed, named by the last eight digits of the key's id. The copy beside ``data`` is
not signed, and is not used.

Source: koji's pathinfo (koji/__init__.py, ``build``, ``signed``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from provision.distros.distro import Archive, Distro, Release
from provision.distros.family import WORK, Script, Spec
from provision.distros.header_rules import fill
from provision.distros.rpm_based import rpm, rpm_keys

# 6.17.1-300.fc43.x86_64; kernels of variants (6.17.1-300.fc43.x86_64+debug) have other packages.
_KERNEL = re.compile(r"(?P<version>[^-/]+)-(?P<release>[^-/]+)\.(?P<arch>[a-z0-9_]+)")


def archive_of_headers(distro: Distro) -> Archive | None:
    """Return the archive of a distro that has signed packages of headers; None: there is none."""
    return next((archive for archive in distro.archives if archive.headers is not None), None)


def keys_script(distro: Distro, release: Release) -> Script:
    """Return what lists the keys of a distro in its base image, for ``header_addresses``."""
    text = f"set -eu\ncd {WORK}\n{rpm_keys.key_listing(release.keys or distro.keys)}"
    return Script(text, folder=None)


def header_addresses(
    archive: Archive, kernel: str, keys: Iterable[str], *, mirror: str | None = None
) -> tuple[str, ...]:
    """Return where the package with a kernel's headers may be, by the key that signed it.

    Args:
        archive: Where the distro keeps it.
        kernel: The kernel's release, as ``uname -r`` prints it.
        keys: The last eight digits of the ids of the distro's keys.
        mirror: An address instead of the archive's own.

    Returns:
        Addresses, none where the archive has no packages of such kernels.
    """
    match = _KERNEL.fullmatch(kernel)
    if match is None or archive.headers is None:
        return ()
    place = (mirror or archive.url).rstrip("/")
    values = match.groupdict()
    return tuple(f"{place}/{fill(archive.headers, {**values, 'key': key})}" for key in keys)


def archived_files(url: str, content: bytes) -> tuple[Spec, Mapping[str, bytes]]:
    """Return what to ask a solver for instead of a package that no repository has.

    Args:
        url: Where the package was.
        content: The package.

    Returns:
        The spec, and files that belong to the script, by path below ``WORK``.
    """
    folder, _, name = urlsplit(url).path.rpartition("/")
    base = url[: len(url) - len(urlsplit(url).path)]
    origin = f"located\tarchive\t{folder.lstrip('/')}/{name}\nbase\tarchive\t{base}\n"
    spec = Spec(f"{WORK}/{rpm.ARCHIVED}/{name}")
    return spec, {
        f"{rpm.ARCHIVED}/{name}": content,
        f"{rpm.ARCHIVED}/origins": origin.encode(),
    }
