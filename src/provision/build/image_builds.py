"""Builds the image of a Pin."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from provision.build.artifact_image import BuildRequest, Built, build, find
from provision.build.context_files import commit_files, downloaded_files
from provision.build.driver_request import BuildSettings
from provision.build.network_access import proxies
from provision.build.package_pins import Resolved, render_context
from provision.build.workspace import Settings
from provision.engine.connection import connect
from provision.engine.docker_api import Engine, Image
from provision.engine.transfer import read_file
from provision.errors import ProvisionError
from provision.manifest import MANIFEST
from provision.progress import Note, Progress, silent

_SHOWN = 12


def module_sums(settings: Settings, engine: Engine, image: Image) -> dict[str, str]:
    """Return the sha256 of an artifact image's modules by path; empty if it can't be read."""
    try:
        manifest = json.loads(read_file(engine, image, str(MANIFEST), state=settings.state))
        return {str(one["path"]): str(one["sha256"]) for one in manifest["modules"]}
    except (ProvisionError, ValueError, KeyError, TypeError):
        return {}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the modules that differ between two builds of one Pin, one line each."""
    return tuple(
        f"{path}: was {_shown(before.get(path))}, is {_shown(after.get(path))}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    )


def explanation(found: tuple[str, ...]) -> str:
    """Return the explanation of modules that differ although every input is the same."""
    return (
        "The modules differ from those of the image that was replaced, although the Pin is the"
        f" same: {'; '.join(found)}. So the driver's own build puts something into them that is"
        " not pinned: the time (__DATE__, KBUILD_BUILD_TIMESTAMP), a random number, the order of"
        " files. What to do: find it with 'diffoscope', and set it in the recipe's command."
    )


def _shown(sha256: str | None) -> str:
    return "not there" if sha256 is None else f"{sha256[:_SHOWN]}…"


def open_engine(settings: Settings) -> Engine:
    """Connect to the container engine of a host."""
    return connect(settings.config.engine.host)


def build_image(
    settings: Settings,
    engine: Engine,
    resolved: Resolved,
    how: BuildSettings,
    *,
    progress: Progress = silent,
) -> Built:
    """Build the image of a Pin, unless it exists."""
    context = render_context(resolved)
    request = BuildRequest(
        pin=resolved.pin,
        files=context.files,
        attach=lambda: downloaded_files(settings, resolved, context, progress=progress),
        state=settings.state,
        build_args=_build_arguments(settings, how.jobs),
        fetch=partial(commit_files, settings, engine, resolved, progress),
        network="none",
        rebuild=how.rebuild,
    )
    replaced = find(engine, resolved.pin) if how.rebuild else None
    before = module_sums(settings, engine, replaced) if replaced else {}
    built = build(engine, request, progress=progress)
    image = engine.image(built.image_id) if before and built.built else None
    if image is None:
        return built
    differing = differences(before, module_sums(settings, engine, image))
    if differing:
        progress(Note(explanation(differing)))
    return replace(built, differing=differing)


def _build_arguments(settings: Settings, jobs: int | None) -> dict[str, str]:
    """Return the build arguments of our Dockerfiles; none of them changes the result."""
    # An engine elsewhere may have more processors than this process may use.
    count = jobs or settings.config.engine.jobs or len(os.sched_getaffinity(0))
    return {"JOBS": str(count), **proxies()}
