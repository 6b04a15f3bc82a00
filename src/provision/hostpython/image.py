"""Has the engine build the image of a pin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO

from provision.build.base_image import ensure_base
from provision.build.diagnosis import BuildError, source_errors
from provision.engine.docker_api import BuildOptions, Engine, EngineLostError, Image
from provision.engine.stream import BuildStream
from provision.engine.tar_streams import pack
from provision.errors import ProvisionError
from provision.hostpython.python_context import DIGEST_LABEL, PythonPin
from provision.progress import Output, Progress, Step

_LAST_LINES = 20


def find_image(engine: Engine, pin: PythonPin) -> Image | None:
    """Return the image of a pin if the engine has it."""
    image = engine.image(pin.image)
    return image if image and image.labels.get(DIGEST_LABEL) == pin.digest else None


def build_image(
    engine: Engine,
    pin: PythonPin,
    files: Mapping[str, bytes],
    *,
    build_args: Mapping[str, str],
    network: str | None,
    log: Path,
    progress: Progress,
) -> Image:
    """Build the image of a pin, and give it its name.

    Args:
        engine: Where.
        pin: What.
        files: The build context.
        build_args: Values that can't change the result.
        network: Network of the build containers; None: the engine's default.
        log: Where the whole output goes.
        progress: Told each step, and each line of the output.

    Raises:
        BuildError: A step failed; has its last lines.
        EngineLostError: The engine went away.
    """
    base = ensure_base(engine, pin.base, progress=progress)
    options = BuildOptions({**build_args, "BASE_IMAGE": base.id}, network)
    stream = BuildStream()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        for message in engine.build(pack(files), options):
            for event in stream.feed(message):
                _write(output, event)
                progress(event)
        stream.finish()
    if stream.error is not None:
        raise _failed(pin, stream, log)
    image = engine.image(stream.image_id) if stream.image_id else None
    if image is None:
        raise EngineLostError(
            f"The engine at {engine.host} stopped in the middle of building Python {pin.version}.",
            resolution="Look whether it runs (systemctl status docker), and run the command"
            " again: it goes on after the last complete step.",
            details=f"Whole output: {log}",
        )
    if image.labels.get(DIGEST_LABEL) != pin.digest:
        raise ProvisionError(
            f"The new image carries another {DIGEST_LABEL} than {pin.digest}.",
            resolution="The Dockerfile must set that label: use this version's templates.",
        )
    engine.tag(image.id, pin.image)
    return image


def _write(output: IO[str], event: object) -> None:
    if isinstance(event, Step):
        output.write(f"Step {event.number}/{event.total}: {event.text}\n")
    elif isinstance(event, Output):
        output.write(f"{event.text}\n")


def _failed(pin: PythonPin, stream: BuildStream, log: Path) -> BuildError:
    step = stream.steps[-1] if stream.steps else None
    lines = list(step.lines) if step else []
    where = [f"Step {step.number}/{stream.total}: {step.instruction}"] if step else []
    ending = [*where, *lines[-_LAST_LINES:], stream.error or "", f"Whole output: {log}"]
    return BuildError(
        f"Python {pin.version} could not be built.",
        resolution="The lines above are the failing step's last ones. A download that failed:"
        " look whether the build container reaches the archive ([engine] network of"
        " provision.toml). Then run the command again: it goes on after the last complete step.",
        details="\n".join(ending),
        steps=stream.steps,
        source_errors=source_errors(lines),
        log=log,
    )
