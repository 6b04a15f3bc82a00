"""Builds the artifact image of a Pin once: an image that exists is found, and builders wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from provision.build.base_image import ensure_base
from provision.build.diagnosis import build_error
from provision.build.engine_build import (
    TOOLS_STAGE,
    EngineBuild,
    is_from,
    labelled_image,
    layers_of,
    remove_layers,
    run_build,
    seconds_by_part,
)
from provision.engine.docker_api import (
    BuildOptions,
    Engine,
    Image,
    names_registry,
)
from provision.engine.stream import BuildStream, StepRecord
from provision.errors import ProvisionError
from provision.files import lock
from provision.pin import PIN_LABEL, Pin
from provision.pin.architectures import names_of
from provision.progress import Note, Progress, silent

DIGEST_LABEL = "provision.pin.digest"


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A build of a Pin.

    Attributes:
        attach: Returns further files of the context, and downloads them if necessary. Called only
            if something is built.
        fetch: Returns the files of the context that a container of the toolchain fetches. Its
            argument returns the id of the toolchain's image, and builds it if necessary.
        build_args: Values that can't change the result: jobs, mirrors, proxies.
    """

    pin: Pin
    files: Mapping[str, bytes | Path]
    state: Path
    attach: Callable[[], Mapping[str, Path]] = dict
    fetch: Callable[[Callable[[], str]], Mapping[str, Path]] | None = None
    build_args: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None
    rebuild: bool = False

    @property
    def log(self) -> Path:
        """The file that gets the whole output of the build."""
        return self.state / "logs" / f"{self.pin.driver.name}-{self.pin.short_digest}.log"


@dataclass(frozen=True, slots=True)
class Built:
    """An artifact image that exists now.

    Attributes:
        built: False if it existed already.
        differing: The modules that differ from those of the replaced image, one line each.
    """

    image: str
    image_id: str
    size: int
    built: bool
    seconds: float = 0.0
    steps: tuple[StepRecord, ...] = ()
    log: Path | None = None
    differing: tuple[str, ...] = ()

    def phases(self) -> dict[str, float]:
        """Return seconds as ``seconds_by_part``; empty for an image that existed."""
        return seconds_by_part(self.steps, self.seconds) if self.built else {}


def find(engine: Engine, pin: Pin) -> Image | None:
    """Return the artifact image of a Pin if the engine has it, under any name.

    Only images with a name count, because a build names its image when it is complete. An image
    that has only a registry's name was not built here.
    """
    image = engine.image(pin.image)
    if image is not None and image.labels.get(DIGEST_LABEL) == pin.digest:
        return image
    others = engine.images_with_label(f"{DIGEST_LABEL}={pin.digest}")
    return next((i for i in others if not all(map(names_registry, i.tags))), None)


def build(engine: Engine, request: BuildRequest, *, progress: Progress = silent) -> Built:
    """Build the image of a Pin, unless it exists."""
    pin = request.pin
    if not request.rebuild and (image := find(engine, pin)):
        return _existing(engine, pin, image)

    def waiting() -> None:
        progress(Note(f"Another process is building {pin.image}; waiting for it"))

    with lock(request.state / "locks" / f"{pin.digest.removeprefix('sha256:')}", on_wait=waiting):
        if not request.rebuild and (image := find(engine, pin)):
            return _existing(engine, pin, image)
        return _build(engine, request, progress)


def _existing(engine: Engine, pin: Pin, image: Image) -> Built:
    if pin.image not in image.tags:
        engine.tag(image.id, pin.image)
    return Built(image=pin.image, image_id=image.id, size=image.size, built=False)


def _build(engine: Engine, request: BuildRequest, progress: Progress) -> Built:
    begun = time.monotonic()
    request = replace(request, files={**request.files, **request.attach()})
    base = ensure_base(engine, request.pin.base, progress=progress)
    # By id, because the name could move between this check and the build.
    args = {**request.build_args, "BASE_IMAGE": base.id}
    # The engine may be of another.
    platform = f"linux/{names_of(request.pin.kernel.architecture).go}"
    options = BuildOptions(args, request.network, platform=platform)
    request.log.parent.mkdir(parents=True, exist_ok=True)
    with request.log.open("w", encoding="utf-8") as log:
        if request.fetch is not None:
            stage = partial(_toolchain, engine, request, options, log, progress)
            request = replace(request, files={**request.files, **request.fetch(stage)})
        whole = _stage(request, options)
        stream = run_build(engine, whole, log, progress)
    image = _checked(engine, request, stream, base)
    before = engine.image(request.pin.image)
    engine.tag(image.id, request.pin.image)
    _remove_replaced(engine, before, image)
    remove_layers(engine, layers_of(stream.steps))
    return Built(
        image=request.pin.image,
        image_id=image.id,
        size=image.size,
        built=True,
        seconds=time.monotonic() - begun,
        steps=tuple(stream.steps),
        log=request.log,
    )


def _toolchain(
    engine: Engine,
    request: BuildRequest,
    options: BuildOptions,
    log: IO[str],
    progress: Progress,
) -> str:
    tools = _stage(request, replace(options, target=TOOLS_STAGE))
    return run_build(engine, tools, log, progress).image_id or ""


def _stage(request: BuildRequest, options: BuildOptions) -> EngineBuild:
    return EngineBuild(
        request.pin.image,
        request.files,
        options,
        request.log,
        lambda stream: build_error(request.pin, stream, request.log),
    )


def _checked(engine: Engine, request: BuildRequest, stream: BuildStream, base: Image) -> Image:
    began_with = next((step.layer for step in stream.steps if is_from(step)), None)
    if began_with is not None and not base.id.removeprefix("sha256:").startswith(began_with):
        raise ProvisionError(
            f"The engine built on the image {began_with}, not on the base image that the Pin "
            f"names ({request.pin.base.image}, {base.id[:19]}).",
            resolution="The Dockerfile must begin with 'ARG BASE_IMAGE=…' and 'FROM "
            "${BASE_IMAGE}': use this version's templates.",
        )
    image = labelled_image(engine, stream, DIGEST_LABEL, request.pin.digest)
    if image.labels.get(PIN_LABEL) != request.pin.canonical_json():
        raise ProvisionError(
            f"The label {PIN_LABEL} of the new image is not its Pin.",
            resolution="The Dockerfile must keep the label: use this version's templates.",
        )
    return image


def _remove_replaced(engine: Engine, before: Image | None, image: Image) -> None:
    """Remove the image that had the name, unless it has another too or a container uses it."""
    if before is not None and before.id != image.id and len(before.tags) == 1:
        with suppress(ProvisionError):
            engine.remove(before.id, with_parents=True)
