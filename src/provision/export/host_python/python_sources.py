"""Resolves the inputs of a Python for hosts: its source, and the packages that build it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from provision.build.base_image import find_base
from provision.build.driver_request import choose_distro
from provision.build.solving import base_request
from provision.build.workspace import Settings
from provision.distros.debian import (
    ArchiveIndex,
    open_index,
    parse_depends,
    upstream_version,
)
from provision.distros.debian.distro_archive import SourcePackage, find_sources, layout_of
from provision.documents import refusing
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.export.host_python.python_context import PythonPin, SourceFilePin, templates_of
from provision.fetch import download
from provision.host.facts import read_facts
from provision.pin import DistroPin, PackagePin, keyring_digest
from provision.progress import Note, Progress, silent
from provision.shipped import templates_dir

_PACKAGES = (
    "gcc",
    "libbz2-dev",
    "libc6-dev",
    "libexpat1-dev",
    "libffi-dev",
    "liblzma-dev",
    "libsqlite3-dev",
    "libssl-dev",
    "libstdc++6",
    "make",
    "patch",
    "patchelf",
    "pkg-config",
    "xz-utils",
    "zlib1g-dev",
)
_VERSIONED = re.compile(r"python3\.[0-9]+")


@dataclass(frozen=True, slots=True)
class ResolvedPython:
    """A pin, with the archive that its build uses.

    Attributes:
        pin: The pin.
        mirror: Address of the distro's archive.
        security_mirror: Address of its security updates, if there are any.
        keyring: The archive's keys, where they are not the distro's own.
        is_snapshot: Whether an index whose validity has ended is accepted.
    """

    pin: PythonPin
    mirror: str
    security_mirror: str | None
    keyring: bytes | None = None
    is_snapshot: bool = False


def resolve_python(
    settings: Settings,
    engine: Callable[[], Engine],
    distro: str | None,
    prefix: str,
    *,
    progress: Progress = silent,
) -> ResolvedPython:
    """Resolve all inputs.

    Args:
        settings: The machine that builds.
        engine: Connects to the engine; called last.
        distro: The distro of the source, such as ``debian:12``; None: this machine's.
        prefix: Its path on hosts.
        progress: Receives what is being done.

    Raises:
        NotFoundError: Distro, a package or the base image is not known.
        UsageError: The prefix is not valid.
        ProvisionError: The archive or the engine failed.
    """
    chosen = choose_distro(settings, distro)
    architecture = read_facts(settings.root).arch
    index, packages, sources = _offered(settings, chosen, architecture, progress)
    version, original, patches = _download(settings.state / "sources", sources, progress)
    base = find_base(engine(), base_request(settings, chosen), progress=progress)
    try:
        pin = PythonPin(
            version=upstream_version(version),
            package=version,
            prefix=prefix,
            architecture=architecture,
            distro=chosen,
            base=base,
            original=original,
            patches=patches,
            packages=packages,
            template=templates_of(templates_dir()).digest,
            keyring=keyring_digest(index.keyring),
        )
    except ValidationError as error:
        raise _refused(prefix, error) from error
    return ResolvedPython(
        pin, index.mirror, index.security_mirror, index.keyring, is_snapshot=index.is_snapshot
    )


def _offered(
    settings: Settings, distro: DistroPin, architecture: str, progress: Progress
) -> tuple[ArchiveIndex, tuple[PackagePin, ...], Sequence[SourcePackage]]:
    """Return a distro's archive, the packages of a build, and the sources of its Python.

    The index is closed: only its attributes of the whole archive can still be read.
    """
    # Both keep what they read in the same cache.
    layout = layout_of(distro)
    access = settings.archives(progress)
    index = open_index(distro, layout, access, architecture=architecture)
    try:
        name = python_package(index)
        with refusing("A package of the distro can't be pinned."):
            packages = tuple(PackagePin(name=p, version=_version(index, p)) for p in _PACKAGES)
    finally:
        index.close()
    sources = find_sources(name, distro, layout, access)
    return index, packages, sources


def read_source(settings: Settings, pin: SourceFilePin) -> bytes:
    """Return a file of the source that ``resolve_python`` has downloaded.

    Raises:
        ProvisionError: It was changed since.
    """
    content = (settings.state / "sources" / pin.name).read_bytes()
    if hashlib.sha256(content).hexdigest() != pin.sha256:
        raise ProvisionError(
            f"'{pin.name}' was changed while it was in use.", resolution="Run the command again."
        )
    return content


def _download(
    folder: Path, sources: Sequence[SourcePackage], progress: Progress
) -> tuple[str, SourceFilePin, SourceFilePin]:
    """Return the newest version that can be downloaded, its source and its patches.

    Mirrors that lag behind, or that have only packages, may lack files that their index lists.

    Raises:
        NotFoundError: No version can be downloaded.
    """
    *newer, last = sources
    for source in newer:
        try:
            return _downloaded(folder, source, progress)
        except NotFoundError as error:
            progress(Note(f"Not {source.name} {source.version}: {error.message}"))
    return _downloaded(folder, last, progress)


def _downloaded(
    folder: Path, source: SourcePackage, progress: Progress
) -> tuple[str, SourceFilePin, SourceFilePin]:
    files = source.file(".orig.tar."), source.file(".debian.tar.")
    for file in files:
        download(
            file.url,
            sha256=file.sha256,
            destination=folder / file.name,
            limit=file.size,
            progress=progress,
        )
    with refusing(f"The source package {source.name} {source.version} can't be pinned."):
        original, patches = (SourceFilePin(name=file.name, sha256=file.sha256) for file in files)
    return source.version, original, patches


def python_package(index: ArchiveIndex) -> str:
    """Return the name of a distro's Python, such as ``python3.11``: its package and its source.

    Raises:
        NotFoundError: It has no Python.
    """
    package = index.package("python3")
    groups = parse_depends(package.depends) if package else ()
    names = {alternative.name for group in groups for alternative in group}
    found = sorted(name for name in names if _VERSIONED.fullmatch(name))
    if not found:
        raise NotFoundError(
            f"{index.distro.id} {index.distro.version} has no Python of its own.",
            details="\n".join(f"looked in {place}" for place in index.addresses),
            resolution=_complete(index),
        )
    return found[0]


def _complete(index: ArchiveIndex) -> str:
    return (
        "Name a complete mirror in /etc/provision/provision.toml:"
        f' [distros.{index.distro.id}.archive] mirror = "https://…".'
    )


def _version(index: ArchiveIndex, name: str) -> str:
    package = index.package(name)
    if package is None:
        raise NotFoundError(
            f"{index.distro.id} {index.distro.version} has no package '{name}', which building a"
            " Python needs.",
            details="\n".join(f"looked in {place}" for place in index.addresses),
            resolution=_complete(index),
        )
    return package.version


def _refused(prefix: str, error: ValidationError) -> UsageError:
    return UsageError(
        f"A Python can't be made for '{prefix}'.",
        resolution="Give an absolute path of two folders or more, of letters, digits and ._+-,"
        " such as /opt/provision/python.",
        details="\n".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()),
    )
