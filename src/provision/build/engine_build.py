"""A build by an engine: its run, the layers that it leaves, and how long each part of it took.

Artifacts and the Python for hosts are built in this way only. The caller says what is built, how
the image is called, and why a build failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from provision.build.diagnosis import BuildError
from provision.build.failure_causes import LAYER_LOST
from provision.engine.docker_api import BuildOptions, Engine, EngineError, EngineLostError, Image
from provision.engine.stream import BuildStream, StepRecord
from provision.engine.tar_streams import pack
from provision.errors import ProvisionError
from provision.progress import Note, Output, Progress, Step

_ATTEMPTS = 5
_BEGUN_AGAIN = "A layer that this build uses was removed meanwhile; making that layer again"
# The stages that all kernels of a distro share, and all drivers of a kernel: their layers stay in
# the engine for the next build.
TOOLS_STAGE = "tools"
KERNEL_STAGE = "toolchain"


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """A build by an engine.

    Attributes:
        failed: Explains a build in which an instruction failed.
    """

    what: str
    files: Mapping[str, bytes | Path]
    options: BuildOptions
    log: Path
    failed: Callable[[BuildStream], BuildError]


def run_build(engine: Engine, build: EngineBuild, log: IO[str], progress: Progress) -> BuildStream:
    """Run a build to its end; return the output of the engine.

    A build that loses a layer to another program begins again, with the layers that are left.
    """
    with pack(build.files) as context:
        for attempt in range(1, _ATTEMPTS + 1):
            stream = _attempt(engine, build, context, log, progress)
            if attempt == _ATTEMPTS or not LAYER_LOST.search(stream.error or ""):
                break
            log.write(f"{stream.error}\n")
            progress(Note(_BEGUN_AGAIN))
    if stream.error is not None:
        log.write(f"{stream.error}\n")
        log.flush()
        raise build.failed(stream)
    if stream.image_id is None:
        raise EngineLostError(
            f"The engine at {engine.host} stopped in the middle of building {build.what}.",
            resolution="Check whether it runs (systemctl status docker), and run the command "
            "again: it continues after the last complete step.",
            details=f"Whole output: {build.log}",
        )
    return stream


def _attempt(
    engine: Engine, build: EngineBuild, context: IO[bytes], log: IO[str], progress: Progress
) -> BuildStream:
    """Run the build from its beginning; what the engine still has of it is not run again."""
    stream = BuildStream()
    context.seek(0)
    for message in engine.build(context, build.options):
        for event in stream.feed(message):
            if isinstance(event, Step):
                log.write(f"Step {event.number}/{event.total}: {event.text}\n")
            elif isinstance(event, Output):
                log.write(f"{event.text}\n")
            progress(event)
    stream.finish()
    return stream


def labelled_image(engine: Engine, stream: BuildStream, label: str, digest: str) -> Image:
    """Return the image of a build if it carries the digest of its Pin."""
    image = engine.image(stream.image_id or "")
    if image is None:
        raise EngineError(
            f"The new image {stream.image_id} is gone: another program removed it before it had a"
            " name.",
            resolution="Stop what removes images of the engine, such as a timer with 'docker image"
            " prune', then run the command again.",
        )
    found = image.labels.get(label)
    if found != digest:
        raise ProvisionError(
            f"The new image carries the label {label}={found}, not the Pin's {digest}.",
            resolution="The Dockerfile must set that label: use this version's templates.",
        )
    return image


def is_from(step: StepRecord) -> bool:
    """Return whether a step begins a stage."""
    return step.instruction.upper().startswith("FROM ")


def layers_of(steps: Iterable[StepRecord], *, stage: str | None = None) -> list[str]:
    """Return layers that a build left in the engine in addition to its artifact, the oldest first.

    Args:
        stage: ``TOOLS_STAGE``: the layers that all kernels of a distro share. ``KERNEL_STAGE``:
            those that all drivers of a kernel share. None: the layers with the driver's source and
            objects, often a gigabyte. No other build can use them, but after a failure the next
            try goes on from them.
    """
    layers: list[str] = []
    is_counted = False
    for step in steps:
        if is_from(step):
            if step.instruction.lower() == "from scratch":
                break
            name = step.instruction.rpartition(" ")[2]
            is_counted = name == stage if stage else name not in {TOOLS_STAGE, KERNEL_STAGE}
        elif is_counted and step.layer:
            layers.append(step.layer)
    return layers


def remove_layers(engine: Engine, layers: Sequence[str]) -> bool:
    """Remove layers that build on each other, given the oldest first; layers in use stay.

    Returns:
        Whether all of them are removed.
    """
    for layer in reversed(layers):
        try:
            engine.remove(layer, with_parents=False)
        except ProvisionError:
            if engine.image(layer) is not None:
                # Another build goes on from it.
                return False
    return True


def seconds_by_part(steps: Iterable[StepRecord], total: float) -> dict[str, float]:
    """Return seconds by part of the work, and ``total``.

    ``packages``: installing and downloading packages. ``sources``: unpacking and patching.
    ``modules``: the driver's own build command. ``collect``: collecting the artifact's files and
    writing its manifest. ``export``: the artifact image. ``engine``: everything else that the
    engine does.
    """
    seconds: dict[str, float] = {}
    for part, step in _parts(steps):
        seconds[part] = seconds.get(part, 0.0) + step.seconds
    accounted = sum(seconds.values())
    seconds["engine"] = seconds.get("engine", 0.0) + max(0.0, total - accounted)
    return {**seconds, "total": total}


def _parts(steps: Iterable[StepRecord]) -> Iterable[tuple[str, StepRecord]]:
    after_jobs = artifact = False
    for step in steps:
        words = step.instruction.split()
        artifact = artifact or words[:2] == ["FROM", "scratch"]
        if artifact:
            yield "export", step
        elif words[0] != "RUN":
            after_jobs = words[0] == "ARG" and words[1].startswith("JOBS")
            yield "engine", step
        elif after_jobs:
            after_jobs = False
            yield "modules", step
        elif "/provision/install.sh" in words or "apt-get" in words:
            yield "packages", step
        elif "/provision/collect.py" in words:
            yield "collect", step
        else:
            yield "sources", step
