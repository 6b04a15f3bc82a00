"""Builds the artifact image of a Pin, once: an image that exists is found, and builders wait."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

from pydantic import ValidationError

from provision.build.base_image import ensure_base
from provision.build.commits import commits_of, ensure_commits
from provision.build.context_files import downloaded_files
from provision.build.diagnosis import OTHER_PLATFORM, BuildError, build_error, is_layer_lost
from provision.build.dockerfile import RenderedContext
from provision.build.package_store import PackageStore, closure_key
from provision.build.provenance import (
    built_here,
    mark_image_used,
    record_built,
    with_own_cache,
)
from provision.build.request import BuildSettings
from provision.build.resolve import Resolved, render_context
from provision.build.workspace import Settings
from provision.engine.docker_api import (
    BuildOptions,
    Engine,
    EngineLostError,
    Image,
    read_file,
)
from provision.engine.stream import BuildStream, StepRecord, layers_of
from provision.engine.tar_streams import pack
from provision.errors import ProvisionError, redact
from provision.files import lock
from provision.manifest import EXTRAS, MANIFEST
from provision.pin import PIN_LABEL, Pin, names_of
from provision.progress import Note, Output, Step, report

_ATTEMPTS = 5
_BEGUN_AGAIN = "A layer that this build uses was removed meanwhile; making that layer again"
_CACHE_IS_WRONG = "The engine's cache has a layer of another architecture; building without it"


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
            if attempt < _ATTEMPTS and is_layer_lost(error):
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


def new_image(engine: Engine, stream: BuildStream) -> Image:
    """Return the image that a build made, which has no name yet."""
    image = engine.image(stream.image_id or "")
    if image is None:
        raise ProvisionError(
            f"The new image {stream.image_id} is gone: another program removed it before it had a"
            " name.",
            resolution="Stop what removes images of the engine, such as a timer with 'docker image"
            " prune', then run the command again.",
            is_outside=True,
        )
    return image


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
    built = built_here(engine, f"{DIGEST_LABEL}={pin.digest}", state)
    return max(built, key=lambda image: pin.image in image.tags, default=None)


def image_pin(image: Image, name: str) -> Pin:
    """Return the Pin in an image's label."""
    try:
        return Pin.model_validate_json(image.labels.get(PIN_LABEL, ""))
    except ValidationError as error:
        raise ProvisionError(
            f"'{name}' is not an artifact image: its label {PIN_LABEL} has no Pin.",
            resolution="Name an image that 'provision build' has built.",
        ) from error


def pin_label(image: Image) -> str:
    """Return the digest in an image's label; one without it is refused as that of another Pin."""
    return image.labels.get(DIGEST_LABEL, "none")


# Labels of a toolchain's image: the digest of what it was made from, and the kernel.
TOOLCHAIN_LABEL = "provision.toolchain"
TOOLCHAIN_KERNEL_LABEL = "provision.toolchain.kernel"


def _use_lock(state: Path, kernel: str) -> Path:
    """Return the lock that builds share while they use a toolchain of a kernel."""
    return state / "locks" / f"toolchains-{kernel}"


def remove_toolchain(engine: Engine, image: Image, state: Path) -> None:
    """Remove the image of a toolchain.

    Raises:
        ProvisionError: It stays: a build uses it.
    """
    with lock(_use_lock(state, image.labels[TOOLCHAIN_KERNEL_LABEL]), limit=0):
        # By name: below the layers of a build that failed, it stays without one, for a prune.
        engine.remove(image.tags[0], with_parents=True)


@dataclass(frozen=True, slots=True)
class _Run:
    """The builds of a Pin: the toolchain, if that is missing, and what begins with its image."""

    engine: Engine
    pin: Pin
    state: Path
    log: BuildLog
    # Values that can't change the result: jobs.
    arguments: Mapping[str, str]

    def build(self, files: Mapping[str, bytes | Path], base_id: str) -> BuildStream:
        """Build on an image, by its id, because a name could move between check and build."""
        options = BuildOptions(
            {**self.arguments, "BASE_IMAGE": base_id}, "none", platform=self.platform
        )
        failed = partial(build_error, self.pin, log=self.log.path)
        files = with_own_cache(files, self.state)
        return run_build(self.engine, self.pin.image, files, options, self.log, failed)

    @property
    def platform(self) -> str:
        """That of the artifact; the engine may be of another."""
        return f"linux/{names_of(self.pin.kernel.architecture).go}"

    def toolchain(
        self,
        context: RenderedContext,
        attach: Callable[[RenderedContext], Mapping[str, Path]],
    ) -> tuple[Image, list[StepRecord]]:
        """Return the toolchain's image, and the steps by which it was made if it was missing."""
        digest = closure_key({"files": context.digest, "platform": self.platform})
        waiting = "Another process is installing the same packages; waiting for it"
        with lock(self.state / "locks" / f"toolchain-{digest[:32]}", waiting=waiting):
            found = built_here(self.engine, f"{TOOLCHAIN_LABEL}={digest}", self.state)
            if found:
                mark_image_used(self.state, found[0])
                return found[0], []
            base = ensure_base(self.engine, self.pin.base)
            kernel = self.pin.kernel.release
            labels = f"LABEL {TOOLCHAIN_LABEL}={digest} {TOOLCHAIN_KERNEL_LABEL}={kernel}\n"
            dockerfile = context.files["Dockerfile"] + labels.encode()
            files: dict[str, bytes | Path] = {**context.files, **attach(context)}
            stream = self.build({**files, "Dockerfile": dockerfile}, base.id)
            image = new_image(self.engine, stream)
            name = f"provision/toolchain:{digest[:12]}"
            record_built(self.state, image.id, name)
            self.engine.tag(image.id, name)
            return image, stream.steps


def build(
    engine: Engine,
    pin: Pin,
    context: RenderedContext,
    *,
    state: Path,
    attach: Callable[[RenderedContext], Mapping[str, Path]] = lambda _: {},
    fetch: Callable[[], Mapping[str, Path]] = dict,
    build_args: Mapping[str, str] | None = None,
    rebuild: bool = False,
) -> Built:
    """Build the image of a Pin, unless it exists.

    Args:
        attach: Returns the files of a context that are not rendered, and downloads them if
            necessary; called only for what is built.
        fetch: Returns the commits of the driver's context, as ``attach`` its other files.
        build_args: Values that can't change the result: jobs.
    """
    waiting = f"Another process is building {pin.image}; waiting for it"
    with lock(state / "locks" / pin.digest.removeprefix("sha256:"), waiting=waiting):
        if not rebuild and (image := find_built(engine, pin, state)):
            if pin.image not in image.tags:
                engine.tag(image.id, pin.image)
            return Built(image=pin.image, image_id=image.id, size=image.size, built=False)
        begun = time.monotonic()
        shared, own = context.split()
        files: dict[str, bytes | Path] = {**own.files, **attach(own)}
        path = state / "logs" / f"{pin.driver.name}-{pin.short_digest}.log"
        in_use = lock(_use_lock(state, pin.kernel.release), shared=True)
        with BuildLog(path) as log, in_use:
            run = _Run(engine, pin, state, log, build_args or {})
            toolchain, steps = run.toolchain(shared, attach)
            stream = run.build({**files, **fetch()}, toolchain.id)
        image = new_image(engine, stream)
        record_built(state, image.id, pin.image)
        # An image that had the name stays without one: who shares the engine may be reading it.
        engine.tag(image.id, pin.image)
        remove_layers(engine, layers_of(stream.steps))
        return Built(
            image=pin.image,
            image_id=image.id,
            size=image.size,
            built=True,
            seconds=time.monotonic() - begun,
            steps=(*steps, *stream.steps),
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
        context,
        state=settings.state,
        attach=partial(downloaded_files, settings, resolved),
        fetch=partial(
            ensure_commits, PackageStore(settings.state), commits_of(resolved.pin.sources)
        ),
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
                f" provision's export of {name} does."
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
