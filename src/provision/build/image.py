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
from typing import IO, Any, Self

from provision.build.base_image import ensure_base
from provision.build.context_files import commit_files, downloaded_files
from provision.build.diagnosis import LAYER_LOST, OTHER_PLATFORM, BuildError, build_error
from provision.build.provenance import is_built_here, record_built, with_own_cache
from provision.build.request import BuildSettings
from provision.build.resolve import Resolved, render_context
from provision.build.workspace import Settings
from provision.engine.docker_api import (
    BuildOptions,
    Engine,
    EngineError,
    EngineLostError,
    Image,
)
from provision.engine.stream import BuildStream, StepRecord
from provision.engine.tar_streams import pack
from provision.engine.transfer import read_file
from provision.errors import ProvisionError, redact
from provision.files import lock
from provision.manifest import EXTRAS, MANIFEST
from provision.pin import Pin
from provision.pin.architectures import names_of
from provision.progress import Note, Output, Step, report

_ATTEMPTS = 5
_BEGUN_AGAIN = "A layer that this build uses was removed meanwhile; making that layer again"
_CACHE_IS_WRONG = "The engine's cache has a layer of another architecture; building without it"
# The stages that all kernels of a distro share, and all drivers of a kernel: their layers stay in
# the engine for the next build.
TOOLS_STAGE = "tools"
KERNEL_STAGE = "toolchain"


class BuildLog:
    """The whole output of a build, for admins: without secrets, and not for all users."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        self._stream = os.fdopen(handle, "w", encoding="utf-8")
        os.fchmod(handle, 0o640)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stream.close()

    def line(self, text: str) -> None:
        """Write a line, or several."""
        self._stream.write(f"{redact(text)}\n")
        # Errors name the file while the build goes on.
        self._stream.flush()


def run_build(
    engine: Engine,
    what: str,
    files: Mapping[str, bytes | Path],
    options: BuildOptions,
    log: BuildLog,
    failed: Callable[[BuildStream], BuildError],
) -> BuildStream:
    """Run a build to its end; return the output of the engine.

    A build that loses a layer to another program begins again, with the layers that are left; one
    to which the engine gives a layer of another architecture, without any.
    """
    with pack(files) as context:
        for attempt in range(1, _ATTEMPTS + 1):
            stream = _attempt(engine, context, options, log)
            error = stream.error or ""
            if attempt < _ATTEMPTS and LAYER_LOST.search(error):
                note = _BEGUN_AGAIN
            elif options.cache and OTHER_PLATFORM.search(error):
                note = _CACHE_IS_WRONG
                options = replace(options, cache=False)
            else:
                break
            log.line(error)
            report(Note(note))
    if stream.error is not None:
        log.line(stream.error)
        raise failed(stream)
    if stream.image_id is None:
        raise EngineLostError(
            f"The engine at {engine.host} stopped in the middle of building {what}.",
            resolution="Check whether it runs (systemctl status docker), and run the command "
            "again: it continues after the last complete step.",
            details=f"Whole output: {log.path}",
        )
    return stream


def _attempt(
    engine: Engine, context: IO[bytes], options: BuildOptions, log: BuildLog
) -> BuildStream:
    """Run the build from its beginning; what the engine still has of it is not run again."""
    stream = BuildStream()
    context.seek(0)
    for message in engine.build(context, options):
        for event in stream.feed(message):
            if isinstance(event, Step):
                log.line(f"Step {event.number}/{event.total}: {event.text}")
            elif isinstance(event, Output):
                log.line(event.text)
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
        if step.instruction.upper().startswith("FROM "):
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
        elif {"/provision/step.py", "collect"} <= {*words}:
            yield "collect", step
        else:
            yield "sources", step


DIGEST_LABEL = "provision.pin.digest"


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
    # What only exports need and could not be made, with the reasons.
    left_out: Mapping[str, str] = field(default_factory=dict)

    def phases(self) -> dict[str, float]:
        """Return seconds by part of the work, and ``total``; empty for an image that existed.

        ``packages``: installing and downloading packages. ``sources``: unpacking and patching.
        ``modules``: the driver's own build command. ``collect``: collecting the artifact's files
        and writing its manifest. ``export``: the artifact image. ``engine``: all else.
        """
        if not self.built:
            return {}
        seconds: dict[str, float] = {}
        for part, step in _parts(self.steps):
            seconds[part] = seconds.get(part, 0.0) + step.seconds
        rest = max(0.0, self.seconds - sum(seconds.values()))
        return {**seconds, "engine": seconds.get("engine", 0.0) + rest, "total": self.seconds}


def find_built(engine: Engine, pin: Pin, state: Path) -> Image | None:
    """Return the artifact image of a Pin, under any name, if it was built here.

    Only images with a name count: one without may be about to be removed.

    Args:
        state: Folder for the state of builds.
    """
    labelled = engine.images_with_label(f"{DIGEST_LABEL}={pin.digest}")
    built = [image for image in labelled if is_built_here(state, image)]
    return max(built, key=lambda image: pin.image in image.tags, default=None)


def pin_label(image: Image) -> str:
    """Return the digest in an image's label; one without it is refused as that of another Pin."""
    return image.labels.get(DIGEST_LABEL, "none")


def build(
    engine: Engine,
    pin: Pin,
    files: Mapping[str, bytes | Path],
    *,
    state: Path,
    attach: Callable[[], Mapping[str, Path]] = dict,
    fetch: Callable[[Callable[[], str]], Mapping[str, Path]] | None = None,
    build_args: Mapping[str, str] | None = None,
    rebuild: bool = False,
) -> Built:
    """Build the image of a Pin, unless it exists.

    Args:
        attach: Returns further files of the context, and downloads them if necessary; called only
            if something is built.
        fetch: Returns the files of the context that a container of the toolchain fetches. Its
            argument returns the id of the toolchain's image, and builds it if necessary.
        build_args: Values that can't change the result: jobs.
    """
    waiting = f"Another process is building {pin.image}; waiting for it"
    with lock(state / "locks" / pin.digest.removeprefix("sha256:"), waiting=waiting):
        if not rebuild and (image := find_built(engine, pin, state)):
            if pin.image not in image.tags:
                engine.tag(image.id, pin.image)
            return Built(image=pin.image, image_id=image.id, size=image.size, built=False)
        begun = time.monotonic()
        files = with_own_cache({**files, **attach()}, state)
        base = ensure_base(engine, pin.base)
        options = BuildOptions(
            # By id, because the name could move between this check and the build.
            {**(build_args or {}), "BASE_IMAGE": base.id},
            "none",
            # The engine may be of another.
            platform=f"linux/{names_of(pin.kernel.architecture).go}",
        )
        path = state / "logs" / f"{pin.driver.name}-{pin.short_digest}.log"
        with BuildLog(path) as log:

            def run(files: Mapping[str, bytes | Path], options: BuildOptions) -> BuildStream:
                failed = partial(build_error, pin, log=path)
                return run_build(engine, pin.image, files, options, log, failed)

            def toolchain() -> str:
                return run(files, replace(options, target=TOOLS_STAGE)).image_id or ""

            stream = run({**files, **(fetch(toolchain) if fetch else {})}, options)
        image = labelled_image(engine, stream, DIGEST_LABEL, pin.digest)
        before = engine.image(pin.image)
        record_built(state, image.id, pin.image)
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
            log=path,
        )


_SHOWN = 12


def _manifest_of(settings: Settings, image: Image) -> Mapping[str, Any]:
    """Return the manifest of an artifact image as JSON has it; empty if it can't be read."""
    try:
        text = read_file(settings.engine(), image, str(MANIFEST), state=settings.state)
        manifest = json.loads(text)
    except (ProvisionError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def module_sums(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the sha256 of the modules of a manifest by path; empty if it has none."""
    try:
        return {str(one["path"]): str(one["sha256"]) for one in manifest["modules"]}
    except (KeyError, TypeError):
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
    replaced = find_built(engine, resolved.pin, settings.state) if how.rebuild else None
    before = module_sums(_manifest_of(settings, replaced)) if replaced else {}
    # An engine elsewhere may have more processors than this process may use.
    jobs = how.jobs or settings.config.engine.jobs or len(os.sched_getaffinity(0))
    built = build(
        engine,
        resolved.pin,
        context.files,
        state=settings.state,
        attach=partial(downloaded_files, settings, resolved, context),
        fetch=partial(commit_files, settings, resolved),
        # Without a network, a build needs no proxy, whose password would reach programs and files.
        build_args={"JOBS": str(jobs)},
        rebuild=how.rebuild,
    )
    image = engine.image(built.image_id)
    if image is None:
        return built
    manifest = _manifest_of(settings, image)
    left_out = dict(manifest.get("left_out", {}))
    for extra, reason in left_out.items():
        name, _, program = extra.partition("/")
        lacking = f"{program} in {EXTRAS.get(name, name)}" if program else EXTRAS.get(name, name)
        report(
            Note(
                f"The image is without {lacking}: {reason}. Hosts and containers don't need it;"
                f" 'provision export {name}' does."
            )
        )
    built = replace(built, left_out=left_out)
    if not (before and built.built):
        return built
    differing = differences(before, module_sums(manifest))
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
