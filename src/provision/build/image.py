"""Builds the artifact image of a Pin, once, and knows which images were built here.

An image's name and labels are its author's words. An engine takes any of them by ``docker pull``
or ``docker load``, and everybody can compute the digest of a Pin. An id is a checksum of the
image's content, so an image whose id this user recorded after a build is the one that was built,
whatever it is called. Without a record, an image is built again; nothing else is lost.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from pydantic import ValidationError

from provision.build.base_image import ensure_base
from provision.build.context_files import context_files
from provision.build.dockerfile import (
    TREE,
    RenderedContext,
    load_templates,
    pinned_entry,
    render,
    template_family,
)
from provision.build.output import (
    BuildStream,
    StepRecord,
    build_error,
    is_layer_lost,
    layers_of,
)
from provision.build.package_store import PackageStore, closure_key
from provision.build.workspace import Settings
from provision.engine.docker_api import (
    Engine,
    EngineLostError,
    Image,
    read_file,
)
from provision.engine.tar_streams import pack
from provision.errors import ProvisionError, UntrustedError, redact
from provision.files import lock, mark_used, write_atomic
from provision.manifest import EXTRAS, MANIFEST
from provision.pin import PIN_LABEL, Pin, names_of
from provision.progress import Note, Output, Step, report
from provision.trust import is_own

_ATTEMPTS = 5
_BEGUN_AGAIN = "A layer that this build uses was removed meanwhile; making that layer again"


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
    log: BuildLog,
    *,
    state: Path,
    build_args: Mapping[str, str],
    platform: str | None = None,
) -> BuildStream:
    """Run a build to its end; return the output of the engine, which may end with an error.

    A build that loses a layer to another program begins again, with the layers that are left.

    Args:
        state: Of this user, whose own steps the engine may take from its cache.
        platform: Of the image, such as ``linux/arm64``; None: the engine's own.
    """
    # Docker's classic builder makes an image of its own platform of 'FROM scratch' and a label, and
    # then finds none of the other. Without a cache, no label is needed.
    cache = platform in {None, f"linux/{engine.architecture()}"}
    with pack(with_own_cache(files, state) if cache else files) as context:
        for attempt in range(1, _ATTEMPTS + 1):
            stream = BuildStream()
            # What the engine still has of it is not run again.
            context.seek(0)
            messages = engine.build(context, build_args=build_args, platform=platform, cache=cache)
            for event in (event for message in messages for event in stream.feed(message)):
                if isinstance(event, Step):
                    log.line(f"Step {event.number}/{event.total}: {event.text}")
                elif isinstance(event, Output):
                    log.line(event.text)
                report(event)
            stream.finish()
            error = stream.error or ""
            if attempt == _ATTEMPTS or not is_layer_lost(error):
                break
            log.line(error)
            report(Note(_BEGUN_AGAIN))
    if stream.error is not None:
        log.line(stream.error)
    elif stream.image_id is None:
        raise EngineLostError(
            f"The engine at {engine.host} stopped in the middle of building {what}.",
            resolution="Check whether it runs (systemctl status docker), and run the command "
            "again: it continues after the last complete step.",
            details=f"Whole output: {log.path}",
        )
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


class Built(NamedTuple):
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
    left_out: Mapping[str, str] = {}

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


def _build_on(
    base_id: str,
    settings: Settings,
    pin: Pin,
    files: Mapping[str, bytes | Path],
    log: BuildLog,
    jobs: int,
) -> BuildStream:
    """Build on an image, by its id, because a name could move between check and build."""
    stream = run_build(
        settings.engine(),
        pin.image,
        files,
        log,
        state=settings.state,
        # Without a network, a build needs no proxy, whose password would reach programs and files.
        build_args={"JOBS": str(jobs), "BASE_IMAGE": base_id},
        platform=_platform(pin),
    )
    if stream.error is not None:
        raise build_error(pin, stream, log.path)
    return stream


def _platform(pin: Pin) -> str:
    """Return that of the artifact; the engine may be of another."""
    return f"linux/{names_of(pin.kernel.architecture).go}"


def _ensure_toolchain(
    settings: Settings, pin: Pin, context: RenderedContext, log: BuildLog, jobs: int
) -> tuple[Image, list[StepRecord]]:
    engine, state = settings.engine(), settings.state
    digest = closure_key({"files": context.digest, "platform": _platform(pin)})
    waiting = "Another process is installing the same packages; waiting for it"
    with lock(state / "locks" / f"toolchain-{digest[:32]}", waiting=waiting):
        if there := built_here(engine, f"{TOOLCHAIN_LABEL}={digest}", state):
            mark_used(_record(state, there[0].id))
            return there[0], []
        base = ensure_base(engine, pin.base)
        kernel = pin.kernel.release
        labels = f"LABEL {TOOLCHAIN_LABEL}={digest} {TOOLCHAIN_KERNEL_LABEL}={kernel}\n"
        dockerfile = context.files["Dockerfile"] + labels.encode()
        downloads = context_files(PackageStore(state), pin, context)
        files: dict[str, bytes | Path] = {**context.files, **downloads, "Dockerfile": dockerfile}
        stream = _build_on(base.id, settings, pin, files, log, jobs)
        image = new_image(engine, stream)
        name = f"provision/toolchain:{digest[:12]}"
        record_built(state, image.id, name)
        engine.tag(image.id, name)
        return image, stream.steps


def build_context(
    settings: Settings,
    pin: Pin,
    context: RenderedContext,
    *,
    jobs: int = 1,
    rebuild: bool = False,
) -> Built:
    """Build the image of a Pin from its context, unless it exists."""
    engine, state = settings.engine(), settings.state
    waiting = f"Another process is building {pin.image}; waiting for it"
    with lock(state / "locks" / pin.digest.removeprefix("sha256:"), waiting=waiting):
        if not rebuild and (image := find_built(engine, pin, state)):
            if pin.image not in image.tags:
                engine.tag(image.id, pin.image)
            return Built(image=pin.image, image_id=image.id, size=image.size, built=False)
        begun = time.monotonic()
        shared, own = context.split()
        downloads = context_files(PackageStore(state), pin, own)
        path = state / "logs" / f"{pin.driver.name}-{pin.short_digest}.log"
        in_use = lock(_use_lock(state, pin.kernel.release), shared=True)
        with BuildLog(path) as log, in_use:
            toolchain, steps = _ensure_toolchain(settings, pin, shared, log, jobs)
            files: dict[str, bytes | Path] = {**own.files, **downloads}
            stream = _build_on(toolchain.id, settings, pin, files, log, jobs)
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


def render_context(settings: Settings, pin: Pin) -> RenderedContext:
    """Render the build context of a Pin; the same Pin gives the same bytes."""
    entry = pinned_entry(settings.catalogue, pin)
    templates = load_templates(TREE if pin.tree else template_family(pin.distro.id))
    return render(pin, entry.recipe, templates=templates, patches=entry.patches)


def build_image(
    settings: Settings, pin: Pin, *, jobs: int | None = None, rebuild: bool = False
) -> Built:
    """Build the image of a Pin, unless it exists."""
    context, engine = render_context(settings, pin), settings.engine()
    replaced = find_built(engine, pin, settings.state) if rebuild else None
    before = module_sums(_manifest_of(settings, replaced)) if replaced else {}
    # An engine elsewhere may have more processors than this process may use.
    jobs = jobs or settings.config.engine.jobs or len(os.sched_getaffinity(0))
    built = build_context(settings, pin, context, jobs=jobs, rebuild=rebuild)
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
    built = built._replace(left_out=left_out)
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
    return built._replace(differing=differing)


_FOLDER = "built"
_DAY_S = 24 * 3600.0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def with_own_cache(files: Mapping[str, bytes | Path], state: Path) -> dict[str, bytes | Path]:
    """Return a build context for which an engine takes no step from others.

    Engines find the steps that were done before by their text and by the image below, among all
    that they have, which anyone can make up in an archive or an image. So each stage begins with a
    label that only this user knows, and the artifact's with one of this build, because others get
    to see that image.
    """
    lines = []
    for line in bytes(files["Dockerfile"]).decode().splitlines():
        lines.append(line)
        words = line.split()
        if words[:2] == ["FROM", "scratch"]:
            lines.append(f"LABEL provision.build={secrets.token_hex(16)}")
        elif words[:2] == ["FROM", "${BASE_IMAGE}"]:
            lines.append(f"LABEL provision.cache={_cache_secret(state)}")
    return {**files, "Dockerfile": "\n".join([*lines, ""]).encode()}


def _cache_secret(state: Path) -> str:
    """Return what only this user knows; without it, steps that were done before are done again."""
    path = _own_folder(state) / "cache-secret"
    with lock(state / "locks" / "cache-secret"):
        if not path.is_file():
            write_atomic(path, secrets.token_hex(16), mode=0o600)
        return path.read_text()


def record_built(state: Path, image_id: str, name: str) -> None:
    """Record that an image was built here.

    Args:
        state: Folder for the state of builds.
        name: The image's name, for people who read the record.
    """
    _own_folder(state)
    write_atomic(_record(state, image_id), f"{name}\n", mode=0o600)


def _own_folder(state: Path) -> Path:
    folder = state / _FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _is_own(folder):
        raise ProvisionError(
            f"'{folder}' belongs to another user, or others may write to it, so what it says of"
            " images is not used.",
            resolution="Build with a cache of your own: unset XDG_CACHE_HOME, or remove that"
            f" folder: rm -r {folder}",
        )
    return folder


def is_built_here(state: Path, image: Image) -> bool:
    """Return whether this user has built an image on this machine."""
    return _is_own(state / _FOLDER) and _record(state, image.id).is_file()


def has_built(state: Path) -> bool:
    """Return whether this user has built any image on this machine."""
    return (state / _FOLDER).is_dir()


def built_here(engine: Engine, label: str, state: Path) -> list[Image]:
    """Return the named images with a label, ``key`` or ``key=value``, that this user has built."""
    return [
        image
        for image in engine.images_with_label(label)
        if image.tags and is_built_here(state, image)
    ]


def days_unused(state: Path, image: Image) -> float:
    """Return the days since an image that was built here was used."""
    return (time.time() - _record(state, image.id).stat().st_mtime) / _DAY_S


def require_built_here(state: Path, image: Image, name: str, *, resolution: str) -> None:
    """Refuse an image that was not built here."""
    if is_built_here(state, image):
        return
    raise UntrustedError(
        f"The image '{name}' is refused: this user did not build it on this machine. What its name"
        " and its labels say is the word of whoever made it.",
        resolution=resolution,
    )


def remove_records(state: Path, engine: Engine, *, days: float) -> None:
    """Remove the records of images that the engine no longer has.

    A young record stays, because the image may be in another engine.
    """
    oldest = time.time() - days * _DAY_S
    for path in sorted((state / _FOLDER).glob("sha256:*")):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest and engine.image(path.name) is None:
                path.unlink()


def _record(state: Path, image_id: str) -> Path:
    # podman leaves the algorithm out, depending on the call.
    return state / _FOLDER / f"sha256:{quote(image_id.removeprefix('sha256:'), safe='')}"


def _is_own(folder: Path) -> bool:
    """Return whether only this user and root can have written to a folder."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_closed = stat.S_ISDIR(status.st_mode) and not status.st_mode & _OTHERS_MAY_WRITE
    return is_closed and is_own(status)
