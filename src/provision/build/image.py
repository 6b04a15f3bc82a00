"""Builds the artifact image of a Pin, once: an image that exists is found, and builders wait."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from provision.build.base_image import ensure_base
from provision.build.context_files import commit_files, downloaded_files
from provision.build.diagnosis import LAYER_LOST, OTHER_PLATFORM, BuildError, build_error
from provision.build.network_access import proxies
from provision.build.request import BuildSettings
from provision.build.resolve import Resolved, render_context
from provision.build.workspace import Settings
from provision.engine.docker_api import (
    BuildOptions,
    Engine,
    EngineError,
    EngineLostError,
    Image,
    names_registry,
)
from provision.engine.stream import BuildStream, StepRecord
from provision.engine.tar_streams import pack
from provision.engine.transfer import read_file
from provision.errors import ProvisionError
from provision.files import lock
from provision.manifest import MANIFEST
from provision.pin import PIN_LABEL, Pin
from provision.pin.architectures import names_of
from provision.progress import Note, Output, Step, report

_ATTEMPTS = 5
_BEGUN_AGAIN = "A layer that this build uses was removed meanwhile; making that layer again"
_CACHE_IS_WRONG = "The engine's cache has a layer of another architecture; building without it"
# The stages that all kernels of a distro share, and all drivers of a kernel: their layers stay in
# the engine for the next build.
TOOLS_STAGE = "tools"
KERNEL_STAGE = "toolchain"


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """A build by an engine."""

    what: str
    files: Mapping[str, bytes | Path]
    options: BuildOptions
    log: Path
    failed: Callable[[BuildStream], BuildError]


def run_build(engine: Engine, build: EngineBuild, log: IO[str]) -> BuildStream:
    """Run a build to its end; return the output of the engine.

    A build that loses a layer to another program begins again, with the layers that are left; one
    to which the engine gives a layer of another architecture, without any.
    """
    with pack(build.files) as context:
        for attempt in range(1, _ATTEMPTS + 1):
            stream = _attempt(engine, build, context, log)
            error = stream.error or ""
            if attempt < _ATTEMPTS and LAYER_LOST.search(error):
                note = _BEGUN_AGAIN
            elif build.options.cache and OTHER_PLATFORM.search(error):
                note = _CACHE_IS_WRONG
                build = replace(build, options=replace(build.options, cache=False))
            else:
                break
            log.write(f"{error}\n")
            report(Note(note))
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


def _attempt(engine: Engine, build: EngineBuild, context: IO[bytes], log: IO[str]) -> BuildStream:
    """Run the build from its beginning; what the engine still has of it is not run again."""
    stream = BuildStream()
    context.seek(0)
    for message in engine.build(context, build.options):
        for event in stream.feed(message):
            if isinstance(event, Step):
                log.write(f"Step {event.number}/{event.total}: {event.text}\n")
            elif isinstance(event, Output):
                log.write(f"{event.text}\n")
            report(event)
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
    """Remove layers that build on each other, given the oldest first; layers in use stay."""
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


DIGEST_LABEL = "provision.pin.digest"


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A build of a Pin."""

    pin: Pin
    files: Mapping[str, bytes | Path]
    state: Path
    # Returns further files of the context, and downloads them if necessary. Called only if
    # something is built.
    attach: Callable[[], Mapping[str, Path]] = dict
    # Returns the files of the context that a container of the toolchain fetches. Its argument
    # returns the id of the toolchain's image, and builds it if necessary.
    fetch: Callable[[Callable[[], str]], Mapping[str, Path]] | None = None
    # Values that can't change the result: jobs, mirrors, proxies.
    build_args: Mapping[str, str] = field(default_factory=dict)
    rebuild: bool = False

    @property
    def log(self) -> Path:
        """The file that gets the whole output of the build."""
        return self.state / "logs" / f"{self.pin.driver.name}-{self.pin.short_digest}.log"


@dataclass(frozen=True, slots=True)
class Built:
    """An artifact image that exists now."""

    image: str
    image_id: str
    size: int
    built: bool
    seconds: float = 0.0
    steps: tuple[StepRecord, ...] = ()
    log: Path | None = None
    # The modules that differ from those of the replaced image, one line each.
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


def pin_label(image: Image) -> str:
    """Return the digest in an image's label; one without it is refused as that of another Pin."""
    return image.labels.get(DIGEST_LABEL, "none")


def build(engine: Engine, request: BuildRequest) -> Built:
    """Build the image of a Pin, unless it exists."""
    pin = request.pin
    if not request.rebuild and (image := find(engine, pin)):
        return _existing(engine, pin, image)
    waiting = f"Another process is building {pin.image}; waiting for it"
    with lock(request.state / "locks" / pin.digest.removeprefix("sha256:"), waiting=waiting):
        if not request.rebuild and (image := find(engine, pin)):
            return _existing(engine, pin, image)
        return _build(engine, request)


def _existing(engine: Engine, pin: Pin, image: Image) -> Built:
    if pin.image not in image.tags:
        engine.tag(image.id, pin.image)
    return Built(image=pin.image, image_id=image.id, size=image.size, built=False)


def _build(engine: Engine, request: BuildRequest) -> Built:
    begun = time.monotonic()
    pin = request.pin
    files = {**request.files, **request.attach()}
    base = ensure_base(engine, pin.base)
    options = BuildOptions(
        # By id, because the name could move between this check and the build.
        {**request.build_args, "BASE_IMAGE": base.id},
        "none",
        # The engine may be of another.
        platform=f"linux/{names_of(pin.kernel.architecture).go}",
    )
    whole = EngineBuild(
        pin.image, files, options, request.log, lambda said: build_error(pin, said, request.log)
    )
    request.log.parent.mkdir(parents=True, exist_ok=True)
    with request.log.open("w", encoding="utf-8") as log:

        def toolchain() -> str:
            tools = replace(whole, options=replace(options, target=TOOLS_STAGE))
            return run_build(engine, tools, log).image_id or ""

        fetched = request.fetch(toolchain) if request.fetch else {}
        stream = run_build(engine, replace(whole, files={**files, **fetched}), log)
    image = _checked(engine, request, stream, base)
    before = engine.image(pin.image)
    engine.tag(image.id, pin.image)
    # The image that had the name, unless it has another too or a container uses it.
    if before is not None and before.id != image.id and len(before.tags) == 1:
        with suppress(ProvisionError):
            engine.remove(before.id, with_parents=True)
    remove_layers(engine, layers_of(stream.steps))
    return Built(
        image=pin.image,
        image_id=image.id,
        size=image.size,
        built=True,
        seconds=time.monotonic() - begun,
        steps=tuple(stream.steps),
        log=request.log,
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


_SHOWN = 12


def module_sums(settings: Settings, image: Image) -> dict[str, str]:
    """Return the sha256 of an artifact image's modules by path; empty if it can't be read."""
    try:
        text = read_file(settings.engine(), image, str(MANIFEST), state=settings.state)
        manifest = json.loads(text)
        return {str(one["path"]): str(one["sha256"]) for one in manifest["modules"]}
    except (ProvisionError, ValueError, KeyError, TypeError):
        return {}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the modules that differ between two builds of one Pin, one line each."""

    def shown(sha256: str | None) -> str:
        return "not there" if sha256 is None else f"{sha256[:_SHOWN]}…"

    return tuple(
        f"{path}: was {shown(before.get(path))}, is {shown(after.get(path))}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    )


def build_image(settings: Settings, resolved: Resolved, how: BuildSettings) -> Built:
    """Build the image of a Pin, unless it exists."""
    context, engine = render_context(resolved), settings.engine()
    request = BuildRequest(
        pin=resolved.pin,
        files=context.files,
        attach=lambda: downloaded_files(settings, resolved, context),
        state=settings.state,
        # None of these changes the result. An engine elsewhere may have more processors than this
        # process may use.
        build_args={
            "JOBS": str(how.jobs or settings.config.engine.jobs or len(os.sched_getaffinity(0))),
            **proxies(),
        },
        fetch=partial(commit_files, settings, resolved),
        rebuild=how.rebuild,
    )
    replaced = find(engine, resolved.pin) if how.rebuild else None
    before = module_sums(settings, replaced) if replaced else {}
    built = build(engine, request)
    image = engine.image(built.image_id) if before and built.built else None
    if image is None:
        return built
    differing = differences(before, module_sums(settings, image))
    if differing:
        report(
            Note(
                "The modules differ from those of the image that was replaced, although the Pin is"
                f" the same: {'; '.join(differing)}. So the driver's own build puts something into"
                " them that is not pinned: the time (__DATE__, KBUILD_BUILD_TIMESTAMP), a random"
                " number, the order of files. What to do: find it with 'diffoscope', and set it in"
                " the recipe's command."
            )
        )
    return replace(built, differing=differing)
