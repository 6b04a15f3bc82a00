"""Has an engine build an image from a context: the one way to do so, for artifacts and for Python.

What is built is the caller's; so are the image's name, and the reason of a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from provision.build.diagnosis import LAYER_LOST, BuildError
from provision.engine.docker_api import BuildOptions, Engine, EngineLostError, Image
from provision.engine.stream import BuildStream
from provision.engine.tar_streams import pack
from provision.errors import ProvisionError
from provision.progress import Note, Output, Progress, Step

_ATTEMPTS = 5
_BEGUN_AGAIN = "A layer that this build uses was removed meanwhile; making that layer again"


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """A build by an engine.

    Attributes:
        what: What is built, for messages.
        files: The build context: content by path, or the file that has it.
        options: What the engine is asked for besides.
        log: The file with the whole output, for messages.
        failed: Explains a build in which an instruction failed.
    """

    what: str
    files: Mapping[str, bytes | Path]
    options: BuildOptions
    log: Path
    failed: Callable[[BuildStream], BuildError]


def run_build(engine: Engine, build: EngineBuild, log: IO[str], progress: Progress) -> BuildStream:
    """Run a build to its end; returns what the engine said.

    A build that loses a layer to another program begins again, with the layers that are left.

    Args:
        engine: The engine.
        build: The build.
        log: Receives the whole output.
        progress: Receives each step, and each line of the output.

    Raises:
        BuildError: An instruction failed.
        EngineLostError: The engine went away.
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
            "again: it goes on after the last complete step.",
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
    """Return the image of a build if it carries the digest of its Pin.

    Args:
        engine: The engine.
        stream: What it said of the build.
        label: The label that has the digest.
        digest: The Pin's digest.

    Raises:
        ProvisionError: The engine lacks the image, or it has another label.
    """
    image = engine.image(stream.image_id or "")
    found = image.labels.get(label) if image else None
    if image is None or found != digest:
        raise ProvisionError(
            f"The new image carries the label {label}={found}, not the Pin's {digest}.",
            resolution="The Dockerfile must set that label: use this version's templates.",
        )
    return image
