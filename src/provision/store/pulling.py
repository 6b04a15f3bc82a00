"""Pulls artifacts from registries into a host's store.

Signature, facts and Pin of an image are verified before. Its layers are unpacked beside the store's
entries, and become an entry when they match their manifest.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from provision.build.workspace import Settings
from provision.documents import load_json
from provision.engine.scratch import scratch
from provision.engine.tar_streams import Unpacker
from provision.engine.transfer import disk_error
from provision.errors import ProvisionError
from provision.kmod.module_signatures import is_signed_for_host
from provision.kmod.verify import DamagedError, Report, verify_artifact
from provision.manifest import MANIFEST, UNSIGNED, Manifest
from provision.progress import Note, Progress, silent
from provision.registry.artifact_images import VerifiedImage, unpack_layers
from provision.registry.registries import TrustOverride
from provision.registry.signatures import UntrustedError
from provision.store.artifacts import Stored, verify_path
from provision.store.entries import (
    adopt,
    drafted,
    known_serials,
    mark_unsigned,
    note_serial,
    unsigned_reference,
)
from provision.store.layout import Layout
from provision.store.locks import changing
from provision.store.staging import DraftOrigin, complete_from_store, finish_draft

Origin = Literal["store", "engine", "registry", "build"]
# The folder of an artifact in its image, which may have a shell in other folders.
_FOLDER = "opt"


class DowngradeError(UntrustedError):
    """A signed artifact that is older than one that this host had."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """An artifact of a registry that is in the store.

    Attributes:
        stored: The entry.
        seconds: Seconds that it took; 0 if it was there.
        received: Bytes of layers that were downloaded.
    """

    stored: Stored
    seconds: float
    received: int = 0


@dataclass(frozen=True, slots=True)
class Obtained:
    """A whole artifact in the store.

    Attributes:
        manifest: Its manifest.
        entry: Its folder.
        origin: Its origin.
        seconds: Seconds by part of the work; ``total`` among them, and ``build`` if it was built.
    """

    manifest: Manifest
    entry: Path
    origin: Origin
    seconds: Mapping[str, float] = field(default_factory=dict)


def store_pulled(
    settings: Settings,
    trusted: VerifiedImage,
    consent: TrustOverride,
    *,
    must_replace: bool = False,
    progress: Progress = silent,
) -> Pulled:
    """Put the artifact of an image into the store of a host, beside the one that is in use.

    Until a link names it, garbage collection may remove it.

    Args:
        settings: The host.
        trusted: The image.
        consent: What the caller allows.
        must_replace: Whether to replace a usable entry.
        progress: Receives the progress.

    Raises:
        DowngradeError: It is older than one that was pulled before.
        WrongContentError: A layer does not match its digest.
        UnreachableError: The registry kept failing.
        ProvisionError: The artifact is damaged, or the disk is full. No file of it is left.
    """
    begun = time.monotonic()
    check_age(settings, trusted, consent)
    pull = _Pull(settings, trusted, progress)
    is_there = pull.entry.is_dir()
    if is_there and not must_replace and (kept := pull.keep(consent)):
        return Pulled(kept, 0.0)
    stored = pull.store(consent, replace=is_there)
    return Pulled(stored, time.monotonic() - begun, pull.received)


class _Pull:
    """One image on its way into the store of a host."""

    def __init__(self, settings: Settings, trusted: VerifiedImage, progress: Progress) -> None:
        pin = trusted.image.pin
        self.layout = Layout(settings.root, pin.driver.name)
        self.entry = self.layout.entry(pin.short_digest)
        self.received = 0
        self._settings = settings
        self._trusted = trusted
        self._progress = progress

    def keep(self, consent: TrustOverride) -> Stored | None:
        """Return the existing entry and record its use; None: it is not usable."""
        manifest = _entry_that_serves(
            self._settings, self.layout, self.entry, self._trusted, self._progress
        )
        if manifest is None:
            return None
        with changing(self.layout, self._progress):
            # A second pull may have been faster, with a newer artifact.
            check_age(self._settings, self._trusted, consent)
            _write_age(self.layout, self._trusted)
        return Stored(manifest, self.entry, added=False)

    def store(self, consent: TrustOverride, *, replace: bool) -> Stored:
        """Download it, and make it the entry."""
        name = self.entry.name
        with (
            drafted(self.layout, name, self._fill) as draft,
            changing(self.layout, self._progress),
        ):
            # As above.
            check_age(self._settings, self._trusted, consent)
            added = adopt(self.layout, name, draft, replace=replace)
            _write_age(self.layout, self._trusted)
            # Before garbage collection may remove the entry, which nothing needs yet.
            manifest = load_json(self.entry / MANIFEST, Manifest)
        return Stored(manifest, self.entry, added)

    def _fill(self, draft: Path) -> None:
        """Make a whole artifact in a new folder, from files of the store and downloaded layers."""
        self.received = _unpack(self._trusted, draft, self._progress, self._complete)
        try:
            self._finish(draft)
        except DamagedError:
            if self.received >= self._trusted.image.manifest.size:
                raise
            self._progress(Note("What the store has of it is damaged; pulling all of it"))
            shutil.rmtree(draft)
            self.received += _unpack(self._trusted, draft, self._progress)
            self._finish(draft)

    def _complete(self, draft: Path) -> bool:
        return complete_from_store(self.layout, self.entry.name, draft, progress=self._progress)

    def _finish(self, draft: Path) -> None:
        image = self._trusted.image
        name = str(image.reference)
        signs = self._trusted.verified is not None
        if not signs:
            mark_unsigned(draft, name)
            if self._settings.config.signing.key is not None:
                unsigned = f"This host's key does not sign the modules of {name}: unsigned"
                self._progress(Note(unsigned))
        origin = DraftOrigin(name, image.pin.digest, signs)
        finish_draft(self._settings, draft, origin, progress=self._progress)


def obtain_pulled(
    settings: Settings,
    trusted: VerifiedImage,
    consent: TrustOverride,
    *,
    replace: bool = False,
    progress: Progress = silent,
) -> Obtained:
    """Pull the artifact of an image into the store; arguments as ``store_pulled``.

    Raises:
        As ``store_pulled``.
    """
    pulled = store_pulled(settings, trusted, consent, must_replace=replace, progress=progress)
    stored = pulled.stored
    origin: Origin = "registry" if stored.added else "store"
    return Obtained(stored.manifest, stored.entry, origin, {"total": pulled.seconds})


def verify_pulled(
    settings: Settings, trusted: VerifiedImage, *, progress: Progress = silent
) -> Report:
    """Download an image's artifact and compare it with its manifest, without keeping it.

    Raises:
        As ``store_pulled``.
    """
    with scratch(settings.state, "verify", progress=progress) as folder:
        draft = folder / "artifact"
        _unpack(trusted, draft, progress)
        return verify_artifact(draft, pin_label=trusted.image.pin.digest)


def unpack_pulled(trusted: VerifiedImage, folder: Path, *, progress: Progress = silent) -> Manifest:
    """Download an image's artifact into a new folder, which a failure removes.

    Raises:
        As ``store_pulled``.
    """
    _unpack(trusted, folder, progress)
    report = verify_artifact(folder, pin_label=trusted.image.pin.digest)
    return report.require_whole(f"The image '{trusted.image.reference}'")


def check_age(settings: Settings, trusted: VerifiedImage, consent: TrustOverride) -> None:
    """Check that no artifact for the same request and kernel was signed later.

    Raises:
        DowngradeError: It is older, and that is not allowed.
        ProvisionError: The record of the newest can't be read.
    """
    facts = trusted.facts
    if facts is None or consent.allow_downgrade:
        return
    newest = max(_serials_so_far(Layout(settings.root, facts.driver), trusted).values(), default=0)
    if facts.serial < newest:
        is_named = trusted.request.name == facts.version
        names = "" if is_named else f' name it in provision.toml (version = "{facts.version}"), or'
        raise DowngradeError(
            f"'{trusted.image.reference}' is refused: it was signed before the artifact of"
            f" {facts.driver} for {facts.kernel} that this host has had"
            f" ({_day(facts.serial)}, and {_day(newest)}).",
            resolution="If you did not go back on purpose, the registry serves old images: look"
            f" into it. To go back on purpose:{names} the same command with --allow-downgrade.",
        )


def _unpack(
    trusted: VerifiedImage,
    draft: Path,
    progress: Progress,
    shared: Callable[[Path], bool] = lambda _draft: False,
) -> int:
    """Unpack an image's layers into a new folder, which a failure removes.

    Args:
        trusted: The image.
        draft: The folder.
        progress: Receives the progress.
        shared: Adds the missing files from elsewhere, and returns whether all of them were there.

    Returns:
        The bytes that were downloaded.
    """
    draft.mkdir()
    try:
        unpacker = Unpacker(draft, strip=_FOLDER, progress=progress, ignores_others=True)
        received = unpack_layers(
            trusted.image,
            draft.parent,
            unpacker.unpack,
            is_complete=lambda: shared(draft),
            progress=progress,
        )
        _refuse_mark(trusted, draft)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error(error, draft) from error
        raise
    return received


def _refuse_mark(trusted: VerifiedImage, draft: Path) -> None:
    """Refuse an image with the mark of unsigned entries, which only hosts set.

    Each run would pull a signed entry with that mark again.
    """
    if os.path.lexists(draft / UNSIGNED):
        raise ProvisionError(
            f"'{trusted.image.reference}' is refused: it brings the mark of an unsigned artifact.",
            resolution="This is no artifact image that provision built: don't use it.",
        )


def _entry_that_serves(
    settings: Settings, layout: Layout, entry: Path, trusted: VerifiedImage, progress: Progress
) -> Manifest | None:
    """Return the manifest of an entry that equals the image; None: it has to be pulled again."""
    with changing(layout, progress):
        report = verify_path(entry, progress=progress)
    if report.manifest is None or report.findings:
        progress(Note(f"{entry} is damaged; pulling it again"))
        return None
    if trusted.verified is not None and unsigned_reference(entry) is not None:
        progress(Note(f"{entry} came from an unsigned image; pulling it again"))
        return None
    if trusted.verified is not None and not is_signed_for_host(
        entry, report.manifest, settings.config.signing, root=settings.root
    ):
        progress(Note(f"{entry} is not signed with this host's key; pulling it again"))
        return None
    return report.manifest


def _write_age(layout: Layout, trusted: VerifiedImage) -> None:
    if trusted.facts is not None:
        serial = trusted.facts.serial
        # There are some only if the caller allowed it, and going back again needs no consent.
        newer = [name for name, one in _serials_so_far(layout, trusted).items() if one > serial]
        note_serial(layout, f"{_target(trusted)}{trusted.facts.version}", serial, forget=newer)


def _serials_so_far(layout: Layout, trusted: VerifiedImage) -> dict[str, int]:
    """Return the serials of artifacts that this host has had and that satisfy the same request."""
    target = _target(trusted)
    return {
        name: serial
        for name, serial in known_serials(layout).items()
        if name.startswith(target) and trusted.request.accepts(name.removeprefix(target))
    }


def _target(trusted: VerifiedImage) -> str:
    """Return the name under which serials are recorded, without the version at its end."""
    pin = trusted.image.pin
    distro = f"{pin.distro.id}:{pin.distro.version}"
    return f"{distro} {pin.kernel.release} {pin.kernel.architecture} {pin.driver.flavour} "


def _day(serial: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(serial))
    except (OverflowError, ValueError, OSError):
        return str(serial)
