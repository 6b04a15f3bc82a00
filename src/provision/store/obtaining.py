"""Puts the artifact of a Pin into a host's store, from the engine, a registry or a build."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from provision.build.image import build_image, find
from provision.build.request import BuildSettings
from provision.build.resolve import Resolved
from provision.build.workspace import Settings
from provision.engine.docker_api import Engine
from provision.errors import NotFoundError, ProvisionError
from provision.kmod.module_signatures import is_signed_for_host
from provision.kmod.verify import Report
from provision.pin import Pin
from provision.progress import Note, Progress, silent
from provision.registry.artifact_images import VerifiedImage
from provision.registry.find import SearchOptions
from provision.registry.publish import EngineImage, configured_signer, publish
from provision.registry.registries import TrustOverride, host_reference
from provision.store.artifact_lookup import asks_registries, look_for_pin
from provision.store.artifacts import store_image, verify_path
from provision.store.layout import Layout
from provision.store.locks import changing
from provision.store.pulling import Obtained, Origin, obtain_pulled


def obtain(
    settings: Settings,
    engine: Callable[[], Engine],
    resolved: Resolved,
    *,
    replace: bool = False,
    progress: Progress = silent,
) -> Obtained:
    """Return the artifact of a Pin from the store; put it there if it is missing.

    Args:
        settings: The host.
        engine: Connects to the engine; not called if the store has the artifact.
        resolved: The Pin.
        replace: Unpack the artifact again although the store has an entry for it.
        progress: Receives the progress.

    Raises:
        BuildError: It can't be built; says why.
        NotFoundError: No engine answers.
        ProvisionError: The engine failed, the artifact is damaged or the disk is full.
    """
    begun = time.monotonic()
    layout = Layout(settings.root, resolved.pin.driver.name)
    entry = layout.entry(resolved.pin.short_digest)
    if not replace and (report := _report_of(layout, entry, progress)) is not None:
        if _serves(settings, entry, report, progress) and report.manifest is not None:
            return Obtained(report.manifest, entry, "store", _total(begun))
        replace = True
    trusted = None if replace else _of_pin(settings, engine, resolved.pin, progress)
    if trusted is not None:
        return obtain_pulled(settings, trusted, TrustOverride(), progress=progress)
    origin, seconds = _have_image(settings, engine(), resolved, progress)
    image = resolved.pin.image
    stored = store_image(settings, engine(), image, replace=replace, progress=progress)
    return Obtained(stored.manifest, entry, origin, {**seconds, **_total(begun)})


def _report_of(layout: Layout, entry: Path, progress: Progress) -> Report | None:
    with changing(layout, progress):
        return verify_path(entry, progress=progress) if entry.is_dir() else None


def _serves(settings: Settings, entry: Path, report: Report, progress: Progress) -> bool:
    """Return whether an entry of the store is whole and signed as configured; note why not."""
    if report.manifest is None or report.findings:
        progress(Note(f"{entry} is damaged; making it again"))
        return False
    if is_signed_for_host(entry, report.manifest, settings.config.signing, root=settings.root):
        return True
    # The same build has the same entry, which is unpacked and signed again.
    progress(Note(f"{entry} is not signed with this host's key; signing it"))
    return False


def _of_pin(
    settings: Settings, engine: Callable[[], Engine], pin: Pin, progress: Progress
) -> VerifiedImage | None:
    """Return a registry's image of a Pin that others have built, if the engine has none."""
    if not asks_registries(settings):
        return None
    try:
        if find(engine(), pin) is not None:
            return None
    except NotFoundError:
        progress(Note("No engine answers; a registry may have what would be built"))
    return look_for_pin(settings, pin, SearchOptions(TrustOverride(), progress=progress))


def _have_image(
    settings: Settings, engine: Engine, resolved: Resolved, progress: Progress
) -> tuple[Origin, Mapping[str, float]]:
    """Build the image in the engine unless it is there; return its origin and the seconds."""
    origin: Origin = "engine" if find(engine, resolved.pin) else "build"
    reference = host_reference(settings, resolved.pin)
    # Names an existing image, and builds a missing one.
    built = build_image(settings, engine, resolved, BuildSettings(), progress=progress)
    if built.built and reference and settings.config.registry.push:
        image = EngineImage(engine, built.image_id, resolved.pin)
        _push(settings, image, reference, progress)
    seconds = built.phases()
    # The total covers more than the build.
    return origin, {("build" if part == "total" else part): s for part, s in seconds.items()}


def _push(settings: Settings, image: EngineImage, reference: str, progress: Progress) -> None:
    """Push an image that was built, and sign it if provision.toml names a key."""
    try:
        if settings.config.registry.sign_key is not None:
            image = replace(image, signer=configured_signer(settings))
        _pushed, signed = publish(settings, image, reference, progress=progress)
        if signed is not None:
            progress(Note(f"Signed {signed.reference}"))
    except ProvisionError as error:
        # The host has its artifact; others can build it themselves.
        progress(Note(f"{error.message} {error.details or ''}".strip()))


def _total(begun: float) -> dict[str, float]:
    return {"total": time.monotonic() - begun}
