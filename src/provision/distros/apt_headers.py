"""Kernel headers in an archive of packages: ``linux-headers-K`` and what it depends on.

Debian's flavours share ``linux-headers-VERSION-common``, and their packages depend on the compiler.
Ubuntu's share ``linux-headers-ABI``, or ``linux-SOURCE-headers-ABI`` where the kernel has a source
package of its own (``linux-aws``, ``linux-hwe-6.8``), and depend on no compiler: the kernel's
configuration in the package names it.

Source: https://kernel-team.pages.debian.net/kernel-handbook/ch-packaging.html and the control files
of Ubuntu's source packages linux, linux-hwe-6.8 and linux-aws (debian.master/control.d).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from provision.archive import (
    Alternative,
    ArchiveIndex,
    IndexedPackage,
    parse_depends,
    version_key,
)
from provision.distros.apt import HEADER_PART, superseded
from provision.distros.headers import cc_version_text, find_compilers
from provision.distros.known import release_of
from provision.documents import refusing
from provision.errors import NotFoundError
from provision.pin import PackagePin

_PREFIX = "linux-headers-"
# gcc-12; gcc-14-for-host stands for the compiler of the architecture that is built for.
_COMPILER = re.compile(r"(?P<package>gcc-[0-9.]+)(-for-host)?")
# 6.1.0-47-cloud-amd64, 6.12.117+deb13-amd64, 6.1.0-0.deb11.5-amd64: version, then flavour.
# Of the characters that a version may have, so that it can be sorted as one.
_RELEASE = re.compile(
    r"(?P<version>[0-9][A-Za-z0-9.+~]*(?:-[0-9][A-Za-z0-9.+~]*)?)-(?P<flavour>[a-z][A-Za-z0-9.+~-]*)"
)
_NEIGHBOURS = 2

# Returns a file of a package, by its absolute path.
FileOf = Callable[[IndexedPackage, str], bytes]


@dataclass(frozen=True, slots=True)
class Headers:
    """What it takes to build a module for a kernel.

    Attributes:
        packages: The packages that hold the headers and their tools, the kernel's own first.
        compiler: The compiler that built the kernel.
    """

    packages: tuple[PackagePin, ...]
    compiler: PackagePin


def find_packages(index: ArchiveIndex, kernel: str, *, file_of: FileOf) -> Headers:
    """Return the packages of a kernel's headers, with their exact versions.

    Args:
        index: The archive of the distro that the kernel comes from.
        kernel: The kernel's release, as ``uname -r`` prints it.
        file_of: Reads the kernel's configuration, where no package says which compiler built it.

    Raises:
        NotFoundError: The headers are not packaged there, or not completely; or the compiler is
            not.
        ProvisionError: The kernel's configuration names no compiler.
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
                if HEADER_PART.fullmatch(group[0].name):
                    raise _incomplete(index, kernel, current, group)
            elif _COMPILER.fullmatch(candidate.name):
                compiler = compiler or candidate
            elif HEADER_PART.fullmatch(candidate.name) and candidate.name not in found:
                found[candidate.name] = candidate
                queue.append(candidate)
    if compiler is None:
        compiler = _configured_compiler(index, kernel, package, file_of)
    return Headers(tuple(_pin(part) for part in found.values()), _pin(compiler))


def _configured_compiler(
    index: ArchiveIndex, kernel: str, package: IndexedPackage, file_of: FileOf
) -> IndexedPackage:
    """Return the compiler that the kernel's configuration names."""
    distro, _ = release_of(index.distro)
    name = f"/usr/src/{_PREFIX}{kernel}/.config"
    text = cc_version_text(file_of(package, name).decode(errors="replace"))
    if text is None:
        raise NotFoundError(
            f"The headers of the kernel {kernel} don't say which compiler built it.",
            details=f"{package.name} {package.version} depends on: {package.depends}\n"
            f"{name} has no CONFIG_CC_VERSION_TEXT",
        )
    for spec in find_compilers(distro, text):
        found = index.package(spec.text)
        if found is not None:
            return found
    raise NotFoundError(
        f"The kernel {kernel} was built with '{text}', and {distro.name}"
        f" {index.distro.version} has no package of that compiler.",
        resolution="The mirror may lack a component or the updates of the release: name a complete"
        " one in /etc/provision/provision.toml.",
        details="\n".join(["looked in:", *(f"  {place}" for place in index.places)]),
    )


def packaged_kernels(index: ArchiveIndex, *, like: str | None = None) -> list[str]:
    """Return the kernels whose headers are packaged, the newest first.

    Args:
        index: The archive. The first of its distro's rules for headers is about plain kernels.
        like: A kernel; only those of its flavour (``amd64``, ``cloud-amd64``, ``rt-amd64``) are
            listed. Without it, or if it has no flavour: the plain ones.
    """
    wanted = _RELEASE.fullmatch(like) if like else None
    plain = re.compile(release_of(index.distro)[0].headers[0].kernels)
    kernels = []
    for package in index.packages_matching(_PREFIX):
        match = _RELEASE.fullmatch(package.name.removeprefix(_PREFIX))
        if match is None or not _is_real(package, match["version"]):
            continue
        if match["flavour"] == wanted["flavour"] if wanted else plain.fullmatch(match[0]):
            kernels.append(match[0])
    return sorted(kernels, key=version_key, reverse=True)


def _is_real(package: IndexedPackage, version: str) -> bool:
    """Return whether a package holds headers, and is no name for the newest that do.

    Such as ``linux-headers-6.12-amd64``, which holds nothing and needs the real one.
    """
    shared = re.compile(rf"linux-(?:[a-z0-9.-]+-)?headers-{re.escape(version)}(?:-common.*)?")
    return any(
        shared.fullmatch(alternative.name)
        for group in parse_depends(package.depends)
        for alternative in group
    )


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
