"""Makes the archive of a Python for hosts: resolve, build, check that it is complete, pack."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from provision.build.image_builds import build_arguments
from provision.build.templates import keyring_file
from provision.build.workspace import Settings
from provision.elf import Elf, read_elf
from provision.engine.docker_api import Engine, Image
from provision.engine.scratch import scratch
from provision.engine.transfer import extract
from provision.errors import ProvisionError
from provision.export.host_python.python_context import (
    PythonBuild,
    PythonPin,
    build_image,
    find_image,
    render_python,
    templates_of,
)
from provision.export.host_python.python_sources import ResolvedPython, read_source, resolve_python
from provision.files import copy, lock, replacing, sha256_file
from provision.progress import Note, Progress, silent
from provision.shipped import templates_dir

_LEVEL = 9


def pack_tree(tree: Path, prefix: str, target: Path) -> None:
    """Write a gzip-compressed tar archive to be unpacked at ``/``; it appears when complete.

    Folders above the prefix are left out: on some hosts ``/opt`` is a link, which an archive that
    has it as a folder would replace.

    Args:
        tree: The folder that becomes ``prefix``.
        prefix: Absolute path on hosts.
        target: The archive.

    Raises:
        OSError: The folder can't be written, or the disk is full.
    """
    with (
        replacing(target) as stream,
        gzip.GzipFile("", "wb", _LEVEL, stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in [tree, *sorted(tree.rglob("*"))]:
            _add(archive, path, f"{prefix[1:]}/{path.relative_to(tree)}".removesuffix("/."))


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    entry = archive.gettarinfo(path, name)
    # Hard links are files of their own: their order would depend on the file system.
    if entry.islnk():
        entry.type, entry.size, entry.linkname = tarfile.REGTYPE, path.stat().st_size, ""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    if entry.isreg():
        with path.open("rb") as content:
            archive.addfile(entry, content)
    else:
        archive.addfile(entry)


@dataclass(frozen=True, slots=True)
class PythonRequest:
    """The options of an archive.

    Attributes:
        distro: Whose Python, such as ``debian:12``; None: this machine's.
        prefix: Its path on hosts.
        output: The archive, or a folder that gets it under its usual name.
        network: Network of the build containers; None: what provision.toml says.
    """

    distro: str | None
    prefix: str
    output: Path
    network: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedPython:
    """The plan of an archive.

    Attributes:
        pin: Its inputs.
        path: The archive.
        would_build: Whether it would be compiled, because the engine has no image of it.
    """

    pin: PythonPin
    path: Path
    would_build: bool


@dataclass(frozen=True, slots=True)
class MadePython:
    """A finished archive.

    Attributes:
        pin: Its inputs.
        path: The archive.
        sha256: Its checksum.
        size: Its bytes.
        built: Whether it was compiled in this run.
    """

    pin: PythonPin
    path: Path
    sha256: str
    size: int
    built: bool


def plan_python(
    settings: Settings,
    engine: Callable[[], Engine],
    request: PythonRequest,
    *,
    progress: Progress = silent,
) -> PlannedPython:
    """Resolve all inputs and return the plan.

    Raises:
        NotFoundError: Distro, a package or the base image is not known.
        UsageError: The prefix is not valid.
        ProvisionError: The archive or the engine failed.
    """
    resolved = resolve_python(settings, engine, request.distro, request.prefix, progress=progress)
    pin = resolved.pin
    return PlannedPython(pin, _target(request.output, pin), find_image(engine(), pin) is None)


def make_python(
    settings: Settings,
    engine: Callable[[], Engine],
    request: PythonRequest,
    *,
    progress: Progress = silent,
) -> MadePython:
    """Make the archive; it is compiled unless the engine already has the result.

    Args:
        settings: The machine that builds.
        engine: Connects to its engine.
        request: The options.
        progress: Receives what is being done.

    Raises:
        BuildError: A step of the build failed.
        NotFoundError: Distro, a package or the base image is not known.
        ProvisionError: The archive or the engine failed, or the result is not self-contained.
        OSError: The output can't be written.
    """
    resolved = resolve_python(settings, engine, request.distro, request.prefix, progress=progress)
    pin = resolved.pin

    def waiting() -> None:
        progress(Note(f"Another process is building {pin.image}; waiting for it"))

    with lock(settings.state / "locks" / pin.short_digest, on_wait=waiting):
        found = find_image(engine(), pin)
        image = found or _build(settings, engine(), resolved, request.network, progress)
    target = _target(request.output, pin)
    with scratch(settings.state, "host-python", progress=progress) as folder:
        tree = folder / "tree"
        extract(engine(), image, tree, state=settings.state, progress=progress)
        check_tree(tree, pin.prefix)
        progress(Note(f"Packing {target}"))
        # The target may be a pipe, which nobody reads again.
        archive = folder / "archive"
        pack_tree(tree, pin.prefix, archive)
        copy(archive, target)
        sha256, size = sha256_file(archive), archive.stat().st_size
    return MadePython(pin, target, sha256, size, built=found is None)


def _build(
    settings: Settings,
    engine: Engine,
    resolved: ResolvedPython,
    network: str | None,
    progress: Progress,
) -> Image:
    pin = resolved.pin
    files = render_python(pin, templates_of(templates_dir())) | keyring_file(resolved.keyring)
    for source in (pin.original, pin.patches):
        files[f"source/{source.name}"] = read_source(settings, source)
    mirrors = resolved.mirror, resolved.security_mirror
    build = PythonBuild(
        pin,
        files,
        build_arguments(settings, *mirrors, is_snapshot=resolved.is_snapshot),
        network or settings.config.engine.network,
        settings.state / "logs" / f"host-python-{pin.short_digest}.log",
    )
    return build_image(engine, build, progress=progress)


def _target(output: Path, pin: PythonPin) -> Path:
    return output / pin.archive_name if output.is_dir() else output


_PROGRAM = "bin/python3"
# Which is what all supported architectures have.
_BITS = 64


def check_tree(tree: Path, prefix: str) -> None:
    """Check all programs and libraries of a tree.

    Args:
        tree: The folder that becomes ``prefix`` on hosts.
        prefix: Absolute path on hosts.

    Raises:
        ProvisionError: Some look for libraries outside of it; names each and what it looks for.
    """
    program = tree / _PROGRAM
    if not program.is_file():
        raise ProvisionError(
            f"The image holds no '{prefix}/{_PROGRAM}'.",
            resolution="Run the command again with --verbose: it shows what the build wrote.",
        )
    problems = [
        f"{path.relative_to(tree)}: {problem}"
        for path, elf in _files(tree)
        for problem in _problems(tree, prefix, path, elf)
    ]
    if problems:
        raise ProvisionError(
            f"The Python for {prefix} would need something of the host.",
            resolution="This is a defect of hostpython/relocate.py: please report it with the"
            " lines above.",
            details="\n".join(problems),
        )


def _files(tree: Path) -> Iterator[tuple[Path, Elf]]:
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as stream:
                elf = read_elf(stream)
            if elf is not None:
                yield path, elf


def _problems(tree: Path, prefix: str, path: Path, elf: Elf) -> Iterator[str]:
    library = f"{prefix}/lib"
    if elf.bits != _BITS:
        yield f"is a file of {elf.bits} bits"
    for name in elf.needed:
        if not (tree / "lib" / name).is_file():
            yield f"needs {name}, which is not there"
    if elf.runpath is not None:
        # It would put an end to the program's RPATH for what this file needs.
        yield f"looks in {elf.runpath}"
    if path.parent == tree / "bin":
        folder, _, loader = (elf.loader or "").rpartition("/")
        if folder != library or not (tree / "lib" / loader).is_file():
            yield f"is started by {elf.loader}"
        if elf.rpath != library:
            yield f"looks in {elf.rpath}, not in {library}"
