"""What the Dockerfile of RPM's families is given besides what every Dockerfile is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.distros import family_of, release_of
from provision.distros.headers import fill
from provision.errors import NotFoundError, ProvisionError
from provision.pin import ArchiveSource, GitSource, PackageSource, Pin

_MAJOR = re.compile(r"^(?:[0-9]+:)?([0-9]+)")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Where headers and compiler are in the build container.

    Attributes:
        build: The kernel's build folder.
        source: The kernel's source folder.
        command: ``gcc`` or ``clang``.
        major: The compiler's major version.
        path: Folder of its programs, where that is not on the usual search path.
    """

    build: str
    source: str
    command: str
    major: str
    path: str | None


def rpm_toolchain(pin: Pin) -> Toolchain:
    """Return where headers and compiler of a Pin are.

    Raises:
        NotFoundError: The Pin is of another distro or kernel than the data know.
        ProvisionError: Its compiler has no version.
    """
    distro, _release = release_of(pin.distro)
    query = family_of(distro).headers(distro, pin.kernel.release, pin.kernel.architecture)
    compiler = pin.compiler
    match = _MAJOR.match(compiler.version) if compiler else None
    if compiler is None or match is None:
        raise ProvisionError(f"The Pin names no version of a compiler: {compiler}.")
    values = {"major": match[1]}
    for rule in distro.compilers:
        if fill(rule.package, values) == compiler.name:
            path = rule.path and fill(rule.path, values)
            return Toolchain(query.build, query.source, rule.command, match[1], path)
    raise NotFoundError(
        f"The Pin's compiler, {compiler.name}, is none of {distro.name}.",
        resolution="Resolve again.",
    )


def closure_files(pin: Pin) -> dict[str, str]:
    """Return the large files of a build context: sha256 by relative path.

    Raises:
        NotFoundError: A source can't be had without a network.
    """
    files = {
        f"packages/{package.location.rpartition('/')[2]}": package.sha256 for package in pin.closure
    }
    for source in pin.sources:
        match source:
            case ArchiveSource():
                files[f"sources/{source.sha256}"] = source.sha256
            case GitSource() | PackageSource():
                raise NotFoundError(
                    f"The source of '{pin.driver.name}' can't be built for {pin.distro.id} yet: it"
                    f" is of the kind '{source.kind}'.",
                    resolution="Take a driver whose source is an archive.",
                )
    return files


def closure_sums(pin: Pin) -> dict[str, bytes]:
    """Return the list of checksums that the build container checks the packages with."""
    lines = [
        f"{package.sha256}  {package.location.rpartition('/')[2]}\n" for package in pin.closure
    ]
    return {"closure.sha256": "".join(sorted(lines)).encode()}
