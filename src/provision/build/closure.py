"""The packages, the toolchain and the large files that a Pin gives to its build context."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.distros import family_of, release_of
from provision.distros.family import fill
from provision.errors import NotFoundError, ProvisionError
from provision.pin import ClosurePackage, DistroPin, Pin, RunfileSource
from provision.sources.repack import FILES, LAYER

# Kinds of sources that only the images of apt's family can unpack.
_APT_ONLY = frozenset({"deb"})
# Paths in the build context: user space as a layer, and the list of what is in it.
_LAYER = "userspace.tar"
_LISTED = "userspace.json"
_MAJOR = re.compile(r"^(?:[0-9]+:)?([0-9]+)")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Where headers and compiler are in the build container.

    Attributes:
        build: The kernel's build folder; None: it is in a kernel tree.
        path: Folder of its programs, where that is not on the usual search path.
    """

    build: str | None
    source: str | None
    command: str
    major: str
    path: str | None


def toolchain_of(pin: Pin) -> Toolchain | None:
    """Return where headers and compiler of a Pin are; None: its compiler is no package."""
    compiler = pin.compiler
    if compiler is None and pin.tree is not None:
        return None
    match = _MAJOR.match(compiler.version) if compiler else None
    if compiler is None or match is None:
        raise ProvisionError(
            f"The Pin names no version of a compiler: {compiler}.",
            resolution=f"Resolve again: provision resolve {pin.driver.name}",
        )
    distro, _release = release_of(installed_from(pin) or pin.distro)
    build, source = None, None
    if pin.tree is None:
        query = family_of(distro).headers(distro, pin.kernel.release, pin.kernel.architecture)
        build, source = query.build, query.source
    values = {"major": match[1]}
    for rule in distro.compilers:
        if fill(rule.package, values) == compiler.name:
            path = rule.path and fill(rule.path, values)
            return Toolchain(build, source, rule.command, match[1], path)
    raise NotFoundError(
        f"The Pin's compiler, {compiler.name}, is not a package of {distro.name}'s compilers.",
        resolution="Resolve again.",
    )


def installed_from(pin: Pin) -> DistroPin | None:
    """Return the distro whose packages are installed; None: the base image has everything."""
    return pin.distro if pin.tree is None else pin.tree.toolchain


def closure_files(pin: Pin) -> dict[str, str]:
    """Return the large files of a build context: sha256 by relative path.

    Commits are not among them: a container of the toolchain fetches those.
    """
    distro = installed_from(pin)
    # A base image that has everything takes no packages.
    family = release_of(distro)[0].family if distro else "apt"
    files = {
        f"{folder}/{package.location.rpartition('/')[2]}": package.sha256
        for folder, packages in closure_parts(pin).items()
        for package in packages
    }
    for source in pin.sources:
        if family != "apt" and source.kind in _APT_ONLY:
            raise NotFoundError(
                f"The source of '{pin.driver.name}' can't be built for {pin.distro.id} yet: it"
                f" is of the kind '{source.kind}'.",
                resolution="Take a driver whose source is an archive or a git repository.",
            )
        if source.file is not None and not isinstance(source, RunfileSource):
            files[f"sources/{source.file}"] = source.file
    return files


def runfile_parts(pin: Pin, directory: str) -> dict[str, str]:
    """Return the files of a build context that are parts of a .run: the part by path."""
    files = {}
    for source in pin.sources:
        if isinstance(source, RunfileSource):
            files[f"sources/{source.sha256}"] = directory.partition("/")[0]
            files[_LAYER] = LAYER
            files[_LISTED] = FILES
    return files


def closure_parts(pin: Pin) -> dict[str, tuple[ClosurePackage, ...]]:
    """Return the packages of a Pin by their folder in the build context.

    ``headers`` are those of the kernel, on which no other package depends. ``packages`` are
    installed before them, in a layer that the builds for other kernels share.
    """
    names = {header.name for header in pin.headers} if pin.tree is None else set()
    headers = tuple(package for package in pin.closure if package.name in names)
    packages = tuple(package for package in pin.closure if package.name not in names)
    return {"packages": packages, "headers": headers}


def closure_sums(pin: Pin) -> dict[str, bytes]:
    """Return the lists of checksums with which the build container verifies the packages."""
    return {
        f"{folder}.sha256": "".join(
            sorted(f"{one.sha256}  {one.location.rpartition('/')[2]}\n" for one in packages)
        ).encode()
        for folder, packages in closure_parts(pin).items()
        if folder != "headers" or pin.tree is None
    }
