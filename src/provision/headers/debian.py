"""Kernel headers of the Debian family: ``linux-headers-K`` and what it depends on.

Source: https://kernel-team.pages.debian.net/kernel-handbook/ch-packaging.html
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from provision.archive import (
    Alternative,
    ArchiveIndex,
    IndexedPackage,
    parse_depends,
    version_key,
)
from provision.documents import refusing
from provision.errors import NotFoundError
from provision.pin import PackagePin

_PREFIX = "linux-headers-"
# Packages that the headers are made of; everything else that they need is the base's business.
_PARTS = (_PREFIX, "linux-kbuild-", "linux-compiler-")
# gcc-12; gcc-14-for-host stands for the compiler of the architecture that is built for.
_COMPILER = re.compile(r"(?P<package>gcc-[0-9.]+)(-for-host)?")
# 6.1.0-47-cloud-amd64, 6.12.117+deb13-amd64, 6.1.0-0.deb11.5-amd64: version, then flavour.
# Of the characters that a version may have, so that it can be sorted as one.
_RELEASE = re.compile(
    r"(?P<version>[0-9][A-Za-z0-9.+~]*(?:-[0-9][A-Za-z0-9.+~]*)?)-(?P<flavour>[a-z][A-Za-z0-9.+~-]*)"
)
_NEIGHBOURS = 2


@dataclass(frozen=True, slots=True)
class Headers:
    """What it takes to build a module for a kernel.

    Attributes:
        packages: The packages that hold the headers and their tools, the kernel's own first.
        compiler: The compiler that built the kernel.
    """

    packages: tuple[PackagePin, ...]
    compiler: PackagePin


def find_headers(index: ArchiveIndex, kernel: str) -> Headers:
    """Return the packages of a kernel's headers, with their exact versions.

    Args:
        index: The archive of the distro that the kernel comes from.
        kernel: The kernel's release, as ``uname -r`` prints it.

    Raises:
        NotFoundError: The headers are not packaged there, or not completely.
    """
    package = index.package(f"{_PREFIX}{kernel}")
    if package is None:
        raise _no_headers(index, kernel)
    found = {package.name: package}
    compiler: IndexedPackage | None = None
    queue = [package]
    while queue:
        current = queue.pop(0)
        for group in parse_depends(current.depends):
            candidate = _pick(index, group)
            if candidate is None:
                if group[0].name.startswith(_PARTS):
                    raise _incomplete(index, kernel, current, group)
            elif _COMPILER.fullmatch(candidate.name):
                compiler = compiler or candidate
            elif candidate.name.startswith(_PARTS) and candidate.name not in found:
                found[candidate.name] = candidate
                queue.append(candidate)
    if compiler is None:
        raise NotFoundError(
            f"The headers of the kernel {kernel} don't say which compiler built it.",
            details=f"{package.name} {package.version} depends on: {package.depends}",
        )
    return Headers(tuple(_pin(part) for part in found.values()), _pin(compiler))


def packaged_kernels(index: ArchiveIndex, *, like: str | None = None) -> list[str]:
    """Return the kernels whose headers are packaged, the newest first.

    Args:
        index: The archive.
        like: A kernel; only those of its flavour (``amd64``, ``cloud-amd64``, ``rt-amd64``) are
            listed. Without it, or if it has no flavour: the plain ones.
    """
    by_flavour: dict[str, list[str]] = {}
    for package in index.packages_matching(_PREFIX):
        match = _RELEASE.fullmatch(package.name.removeprefix(_PREFIX))
        # A package such as linux-headers-6.12-amd64 holds nothing and needs the real one.
        if match and _is_real(package, match["version"]):
            by_flavour.setdefault(match["flavour"], []).append(match[0])
    wanted = _RELEASE.fullmatch(like) if like else None
    flavours = {wanted["flavour"]} if wanted else _plain(by_flavour)
    kernels = [kernel for flavour in flavours for kernel in by_flavour.get(flavour, [])]
    return sorted(kernels, key=version_key, reverse=True)


def _is_real(package: IndexedPackage, version: str) -> bool:
    return any(
        alternative.name.startswith(f"{_PREFIX}{version}-common")
        for group in parse_depends(package.depends)
        for alternative in group
    )


def _plain(flavours: Iterable[str]) -> set[str]:
    """Return the flavours that are no variant of another (``rt-amd64`` is one of ``amd64``)."""
    names = set(flavours)
    return {
        name
        for name in names
        if not any(name.endswith(f"-{o}") or name.startswith(f"{o}-") for o in names - {name})
    }


def _pick(index: ArchiveIndex, group: tuple[Alternative, ...]) -> IndexedPackage | None:
    """Return the newest package that satisfies a dependency: of the first alternative that has one.

    A compiler "for host" is replaced by the plain one, because a build runs on the architecture
    that it is for.
    """
    for alternative in group:
        match = _COMPILER.fullmatch(alternative.name)
        for package in index.versions(match["package"] if match else alternative.name):
            if alternative.accepts(package.version):
                return package
    return None


def _pin(package: IndexedPackage) -> PackagePin:
    with refusing(f"The package {package.name} {package.version} can't be pinned."):
        return PackagePin(name=package.name, version=package.version)


def _no_headers(index: ArchiveIndex, kernel: str) -> NotFoundError:
    distro = f"{index.distro.id} {index.distro.version}"
    nearest = _nearest(kernel, packaged_kernels(index, like=kernel) or packaged_kernels(index))
    looked = [f"looked for {_PREFIX}{kernel} ({index.architecture}) in:"]
    return NotFoundError(
        f"No headers are packaged for the kernel {kernel} on {distro}.",
        resolution="Headers may come later than their kernel: try again then ('provision apply'"
        " and its timer do). If the distro has dropped them, boot a kernel that is packaged"
        " (--kernel builds for it), or name a mirror that still has them in"
        " /etc/provision/provision.toml.",
        details="\n".join(
            [
                *looked,
                *(f"  {place}" for place in index.places),
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


def _incomplete(
    index: ArchiveIndex,
    kernel: str,
    package: IndexedPackage,
    group: tuple[Alternative, ...],
) -> NotFoundError:
    wanted = " | ".join(
        f"{a.name} ({a.relation} {a.version})" if a.relation else a.name for a in group
    )
    return NotFoundError(
        f"The headers of the kernel {kernel} are not complete on {index.distro.id}"
        f" {index.distro.version}: {package.name} {package.version} needs {wanted}.",
        resolution="The mirror may be in the middle of an update: try again later, or use another.",
        details="\n".join(["looked in:", *(f"  {place}" for place in index.places)]),
    )
