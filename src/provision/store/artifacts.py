"""Artifacts in images and in a store: verifying, installing and activating them on a host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provision.build.image import DIGEST_LABEL
from provision.build.workspace import Settings
from provision.documents import load_json, parse_json
from provision.engine.docker_api import Engine, Image
from provision.engine.scratch import scratch
from provision.engine.transfer import extract, find_image, read_file
from provision.errors import ProvisionError
from provision.kmod.verify import Report, verify_artifact
from provision.manifest import MANIFEST, Manifest
from provision.progress import Note, Progress, silent
from provision.store.activate import apply, plan, plan_removal
from provision.store.entries import (
    adopt,
    current_entry,
    drafted,
    linked_kernels,
    remove_leftovers,
    unlink_kernel,
)
from provision.store.layout import Layout
from provision.store.locks import changing, switching
from provision.store.managed_files import Change
from provision.store.staging import DraftOrigin, finish_draft, verifying
from provision.store.state import refuse_newer


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an installation.

    Attributes:
        manifest: The manifest of the artifact that is in use now.
        entry: Its folder in the store.
        changes: The changes that were or would be made; empty if it was in use already.
    """

    manifest: Manifest
    entry: Path
    changes: tuple[Change, ...]


def verify_path(artifact: Path, *, progress: Progress = silent) -> Report:
    """Verify an artifact on disk.

    Raises:
        NotFoundError: There is no such folder.
    """
    return verify_artifact(artifact, on_bytes=verifying(progress))


def verify_current(settings: Settings, driver: str, *, progress: Progress = silent) -> Report:
    """Verify the artifact of a driver that is in use on a host.

    Raises:
        NotFoundError: The driver is not installed there.
    """
    return verify_path(current_entry(Layout(settings.root, driver)), progress=progress)


def verify_image(
    settings: Settings, engine: Engine, reference: str, *, progress: Progress = silent
) -> Report:
    """Verify the artifact in an image.

    Raises:
        NotFoundError: There is no such image.
        ProvisionError: Its content can't be unpacked safely.
    """
    image = find_image(engine, reference)
    with scratch(settings.state, "verify", progress=progress) as folder:
        artifact = folder / "artifact"
        extract(engine, image, artifact, state=settings.state, progress=progress)
        return _verified(artifact, image, progress)


@dataclass(frozen=True, slots=True)
class Stored:
    """An artifact in a host's store.

    Attributes:
        manifest: Its manifest.
        entry: Its folder.
        added: Whether it was added now.
    """

    manifest: Manifest
    entry: Path
    added: bool


def install_image(
    settings: Settings,
    engine: Engine,
    reference: str,
    *,
    again: bool = False,
    replace: bool = False,
    progress: Progress = silent,
) -> Installed:
    """Put the artifact of an image into the store of a host, and activate it.

    Args:
        settings: The host.
        engine: The engine that has the image.
        reference: The image.
        again: Unpack the artifact although the store has it.
        replace: Replace foreign files.
        progress: Receives the progress.

    Raises:
        NotFoundError: There is no such image.
        ProvisionError: The artifact is damaged, the disk is full, or a foreign file is in the
            way. The artifact that was in use stays in use then.
    """
    image = find_image(engine, reference)
    manifest = _manifest_of(settings, engine, image, reference)
    layout = Layout(settings.root, manifest.pin.driver.name)
    entry = layout.entry(manifest.pin.short_digest)
    with _locked(layout, progress):
        # A foreign file in the way is found before anything is unpacked.
        plan(layout, manifest, replace=replace)
    source = _Source(image, reference, manifest)
    while True:
        with (
            _drafted(settings, engine, source, replace=again, progress=progress) as draft,
            switching(layout.root, progress),
            _locked(layout, progress),
        ):
            if draft is None and not entry.is_dir():
                # Garbage collection has removed it since it was verified.
                continue
            changes = plan(layout, manifest, replace=replace)
            added = draft is not None and adopt(layout, entry.name, draft, replace=again)
            if added and not any(change.kind == "unpack" for change in changes):
                changes.insert(0, Change("unpack", entry))
            apply(layout, changes, on_change=lambda change: progress(Note(str(change))))
            return Installed(manifest, entry, tuple(changes))


def plan_installation(
    settings: Settings, engine: Engine, reference: str, *, replace: bool = False
) -> Installed:
    """Return what ``install_image`` would do; arguments and errors as there."""
    manifest = _manifest_of(settings, engine, find_image(engine, reference), reference)
    layout = Layout(settings.root, manifest.pin.driver.name)
    changes = plan(layout, manifest, replace=replace)
    return Installed(manifest, layout.entry(manifest.pin.short_digest), tuple(changes))


def store_image(
    settings: Settings,
    engine: Engine,
    reference: str,
    *,
    replace: bool = False,
    progress: Progress = silent,
) -> Stored:
    """Put the artifact of an image into the store of a host, beside the one that is in use.

    Until a link names it, garbage collection may remove it.

    Arguments and errors as ``install_image``.
    """
    image = find_image(engine, reference)
    manifest = _manifest_of(settings, engine, image, reference)
    layout = Layout(settings.root, manifest.pin.driver.name)
    entry = layout.entry(manifest.pin.short_digest)
    source = _Source(image, reference, manifest)
    with (
        _drafted(settings, engine, source, replace=replace, progress=progress) as draft,
        _locked(layout, progress),
    ):
        added = draft is not None and adopt(layout, entry.name, draft, replace=replace)
    return Stored(manifest, entry, added)


def activate_entry(
    layout: Layout, entry: Path, *, replace: bool = False, progress: Progress = silent
) -> Installed:
    """Activate an artifact of the store: links, vendor file, loader configuration.

    Args:
        layout: The driver's paths.
        entry: The artifact's folder.
        replace: Replace foreign files.
        progress: Receives the progress.

    Raises:
        ConfigError: Its manifest is not valid.
        ProvisionError: A foreign file is in the way.
    """
    with switching(layout.root, progress), _locked(layout, progress):
        manifest = load_json(entry / MANIFEST, Manifest)
        changes = plan(layout, manifest, replace=replace)
        apply(layout, changes, on_change=lambda change: progress(Note(str(change))))
    return Installed(manifest, entry, tuple(changes))


def deactivate(layout: Layout, *, progress: Progress = silent) -> None:
    """Deactivate a driver: remove its files outside of the store, and the links in the store.

    The links of its kernels go last, so that the next run completes one that was killed.

    Raises:
        NewerStateError: A newer provision wrote its state.
        OSError: A file can't be removed.
    """
    with switching(layout.root, progress), _locked(layout, progress):
        refuse_newer(layout)
        changes = plan_removal(layout)
        apply(layout, changes, on_change=lambda change: progress(Note(str(change))))
        layout.state.unlink(missing_ok=True)
        for release in linked_kernels(layout):
            unlink_kernel(layout, release)


@contextmanager
def _locked(layout: Layout, progress: Progress) -> Iterator[None]:
    """Hold the lock of a driver, and remove the leftovers of killed runs."""
    with changing(layout, progress):
        for path in remove_leftovers(layout):
            progress(Note(f"Removed what an interrupted run left behind: {path}"))
        yield


@dataclass(frozen=True, slots=True)
class _Source:
    """An image with its name and the manifest in it."""

    image: Image
    reference: str
    manifest: Manifest


@contextmanager
def _drafted(
    settings: Settings,
    engine: Engine,
    source: _Source,
    *,
    replace: bool,
    progress: Progress,
) -> Iterator[Path | None]:
    """Unpack, verify and sign an image beside the store's entries; yield the draft.

    If the store has the entry already, verify the entry and yield None.
    """
    pin = source.manifest.pin
    layout = Layout(settings.root, pin.driver.name)
    entry = layout.entry(pin.short_digest)

    def fill(partial: Path) -> None:
        progress(Note(f"unpack {entry}"))
        extract(engine, source.image, partial, state=settings.state, progress=progress)
        label = source.image.labels.get(DIGEST_LABEL, "none")
        origin = DraftOrigin(source.reference, label)
        finish_draft(settings, partial, origin, progress=progress)

    if not replace and verify_entry(layout, entry, progress=progress):
        yield None
        return
    with drafted(layout, pin.short_digest, fill) as draft:
        yield draft


def verify_entry(layout: Layout, entry: Path, *, progress: Progress = silent) -> bool:
    """Verify an entry of the store under the driver's lock; return whether it exists.

    Raises:
        ProvisionError: It is damaged.
    """
    with _locked(layout, progress):
        if not entry.is_dir():
            return False
        verify_path(entry, progress=progress).require_whole(f"The store entry '{entry}'")
        return True


def _manifest_of(settings: Settings, engine: Engine, image: Image, reference: str) -> Manifest:
    """Read the manifest in an image.

    Raises:
        ProvisionError: It has none, or one that is not valid.
    """
    try:
        text = read_file(engine, image, str(MANIFEST), state=settings.state)
    except ProvisionError as error:
        raise ProvisionError(
            f"'{reference}' is no artifact image: it has no {MANIFEST}.",
            resolution="Name an image that 'provision build' made.",
            details=error.details,
        ) from error
    return parse_json(text.decode(errors="replace"), Manifest, name=f"{reference}:{MANIFEST}")


def _verified(artifact: Path, image: Image, progress: Progress) -> Report:
    # An image without the label is refused as one with the label of another Pin.
    label = image.labels.get(DIGEST_LABEL, "none")
    return verify_artifact(artifact, pin_label=label, on_bytes=verifying(progress))
