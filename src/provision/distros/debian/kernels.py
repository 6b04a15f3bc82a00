"""The kernels whose headers an archive has.

Debian's flavours share ``linux-headers-VERSION-common``. Ubuntu's share ``linux-headers-ABI``, or
``linux-SOURCE-headers-ABI`` where the kernel has a source package of its own (``linux-aws``,
``linux-hwe-6.8``).

Source: https://kernel-team.pages.debian.net/kernel-handbook/ch-packaging.html and the control files
of Ubuntu's source packages linux, linux-hwe-6.8 and linux-aws (debian.master/control.d).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from provision.distros.debian.archive_index import IndexedPackage
from provision.distros.debian.relations import parse_depends, version_key
from provision.distros.distro import Distro

HEADERS = "linux-headers-"
# 6.1.0-47-cloud-amd64, 6.12.117+deb13-amd64, 6.1.0-0.deb11.5-amd64: version, then flavour.
# Of the characters that a version may have, so that it can be sorted as one.
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
