"""From a wish to an archive: resolve, build, check, pack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from provision.build.templates import keyring_file
from provision.catalogue import templates_dir
from provision.engine.docker_api import Engine, Image
from provision.engine.scratch import scratch
from provision.engine.transfer import extract
from provision.files import lock, sha256_file
from provision.hostpython.elf import check_tree
from provision.hostpython.image import build_image, find_image
from provision.hostpython.pack import pack_tree
from provision.hostpython.python_context import PythonPin, render_python, templates_of
from provision.hostpython.python_sources import ResolvedPython, read_source, resolve_python
from provision.pipeline.building import build_arguments
from provision.pipeline.workspace import Settings
from provision.progress import Note, Progress, silent


@dataclass(frozen=True, slots=True)
class Planned:
    """What would be made.

    Attributes:
        pin: From what.
        path: The archive.
        would_build: Whether it would be compiled: the engine has no image of it.
    """

    pin: PythonPin
    path: Path
    would_build: bool


@dataclass(frozen=True, slots=True)
class Made:
    """An archive that is there now.

    Attributes:
        pin: What it was made from.
        path: The archive.
        sha256: Its checksum.
        size: Its bytes.
        built: Whether it was compiled now.
    """

    pin: PythonPin
    path: Path
    sha256: str
    size: int
    built: bool


def plan_python(
    settings: Settings,
    engine: Callable[[], Engine],
    *,
    distro: str | None,
    prefix: str,
    output: Path,
    progress: Progress = silent,
) -> Planned:
    """Decide every input, and say what would be made of it.

    Raises:
        NotFoundError: Distro, a package or the base image is not known.
        UsageError: The prefix is none.
        ProvisionError: The archive or the engine failed.
    """
    pin = resolve_python(settings, engine, distro, prefix, progress=progress).pin
    return Planned(pin, _target(output, pin), find_image(engine(), pin) is None)


def make_python(
    settings: Settings,
    engine: Callable[[], Engine],
    *,
    distro: str | None,
    prefix: str,
    output: Path,
    network: str | None = None,
    progress: Progress = silent,
) -> Made:
    """Make the archive; it is compiled where the engine does not have the result already.

    Args:
        settings: The machine that builds.
        engine: Connects to its engine.
        distro: Whose Python, such as ``debian:12``; None: this machine's.
        prefix: Where it will lie on hosts.
        output: The archive, or a folder that gets it under its usual name.
        network: Network of the build containers; None: what provision.toml says.
        progress: Told what goes on.

    Raises:
        BuildError: A step of the build failed.
        NotFoundError: Distro, a package or the base image is not known.
        ProvisionError: The archive or the engine failed, or the result needs more than it brings.
        OSError: The output can't be written.
    """
    resolved = resolve_python(settings, engine, distro, prefix, progress=progress)
    pin = resolved.pin

    def waiting() -> None:
        progress(Note(f"Another process is building {pin.image}; waiting for it"))

    with lock(settings.state / "locks" / pin.short_digest, on_wait=waiting):
        found = find_image(engine(), pin)
        image = found or _build(settings, engine(), resolved, network, progress)
    target = _target(output, pin)
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch(settings.state, "host-python", progress=progress) as folder:
        tree = folder / "tree"
        extract(engine(), image, tree, state=settings.state, progress=progress)
        check_tree(tree, pin.prefix)
        progress(Note(f"Packing {target}"))
        pack_tree(tree, pin.prefix, target)
    return Made(pin, target, sha256_file(target), target.stat().st_size, built=found is None)


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
    return build_image(
        engine,
        pin,
        files,
        build_args=build_arguments(
            settings,
            resolved.mirror,
            resolved.security_mirror,
            is_snapshot=resolved.is_snapshot,
        ),
        network=network or settings.config.engine.network,
        log=settings.state / "logs" / f"host-python-{pin.short_digest}.log",
        progress=progress,
    )


def _target(output: Path, pin: PythonPin) -> Path:
    return output / pin.archive_name if output.is_dir() else output
