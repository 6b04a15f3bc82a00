"""Puts an artifact into the store: from a registry, from the engine, or built for it.

Signature, facts and Pin of a registry's image are verified before. Its layers are unpacked beside
the store's entries; the draft is verified, signed and labelled, and then becomes an entry. Until a
link names an entry, garbage collection may remove it.

The artifacts of a driver version share their user space for all kernels, and the manifest, in the
last layer with the modules, has the sha256 of each file. What other entries have of it is linked
from there instead of being pulled, and verified with the rest: entries never change.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from provision.build.image import (
    build_image,
    find_built,
    image_pin,
    is_built_here,
    pin_label,
    require_built_here,
)
from provision.build.workspace import Settings
from provision.engine.docker_api import Image, disk_error, extract, find_image
from provision.engine.tar_streams import Unpacker
from provision.errors import NotFoundError, ProvisionError
from provision.files import scratch
from provision.kmod.loader import link_modules
from provision.kmod.module_signatures import is_signed_for_host, sign_modules
from provision.kmod.verify import DamagedError, Report, stored_manifest, verify_artifact
from provision.manifest import DriverFile, Manifest, load_manifest
from provision.pin import Pin
from provision.progress import Note, report
from provision.registry.find import (
    ArtifactImage,
    TrustOverride,
    find_pin_in_registries,
    host_reference,
    unpack_layers,
)
from provision.registry.publish import configured_signer, publish
from provision.store.availability import check_age, record_serial
from provision.store.entries import (
    Admission,
    UnreadableAdmissionError,
    adopt,
    distrust,
    drafted,
    entries,
    label_entry,
    read_admission,
    record_admission,
)
from provision.store.layout import Layout, changing

Origin = Literal["store", "engine", "registry", "build"]
# The folder of an artifact in its image, which may have a shell in other folders.
_FOLDER = "opt"
# In place of a registry's repository; no rule of [trust.registries] can have this name.
ENGINE = "engine:"


class Stored(NamedTuple):
    """A whole artifact in the store."""

    manifest: Manifest
    entry: Path
    # ``store`` if it was there.
    origin: Origin
    # By part of the work; ``total`` among them, and ``build`` if it was built.
    seconds: Mapping[str, float] = {}
    # Bytes of layers that were downloaded.
    received: int = 0


def obtain(settings: Settings, pin: Pin, *, replace: bool = False) -> Stored:
    """Return the artifact of a Pin from the store; put it there if it is missing."""
    begun = time.monotonic()
    entry = Layout(settings.root, pin.driver.name).entry(pin.short_digest)
    is_there = entry.is_dir()
    if not replace and (stored := _usable(settings, pin)):
        return stored
    if not is_there and (trusted := _of_pin(settings, pin)):
        return store_pulled(settings, trusted, TrustOverride())
    # Names an existing image, and builds a missing one.
    built = build_image(settings, pin)
    origin: Origin = "build" if built.built else "engine"
    if built.built:
        _push(settings, pin, built.image_id)
    # By id: another process may have given the name to another image.
    image = find_image(settings.engine(), built.image_id)
    manifest = add(settings, image, pin.image, pin)
    # The build's own total is a part of this one.
    seconds = {("build" if part == "total" else part): s for part, s in built.phases().items()}
    return Stored(manifest, entry, origin, {**seconds, **_total(begun)})


def _usable(settings: Settings, pin: Pin, admission: Admission | None = None) -> Stored | None:
    """Return the entry of a Pin that a host may use as it is.

    Args:
        admission: Who vouches for what the caller would put there; None: the caller has nothing.

    Returns:
        The entry; None: it is missing, or has to be made again for a reason that is noted.
    """
    begun = time.monotonic()
    layout = Layout(settings.root, pin.driver.name)
    entry = layout.entry(pin.short_digest)
    if not entry.is_dir():
        return None
    with changing(layout):
        if not entry.is_dir():
            # Garbage collection has removed it meanwhile.
            return None
        found = verify_artifact(entry)
    manifest, signing = found.manifest, settings.config.signing
    if manifest is None or found.findings:
        report(Note(f"{entry} is damaged; making it again"))
        return None
    why = distrust(settings.config, settings.root, layout.driver, entry)
    if why is not None and not _is_by(entry, admission):
        report(Note(f"{entry} is not trusted now: {why}; making it again"))
        return None
    # The host's key signs no module of an image that nobody vouches for.
    is_unsigned = admission is not None and admission.fingerprint is None
    if not is_unsigned and not is_signed_for_host(entry, manifest, signing, root=settings.root):
        # The same build has the same entry, which is unpacked and signed again.
        report(Note(f"{entry} is not signed with this host's key; making it again"))
        return None
    return Stored(manifest, entry, "store", _total(begun))


def _is_by(entry: Path, admission: Admission | None) -> bool:
    """Return whether who vouches for an entry is who would vouch for it now."""
    try:
        before = read_admission(entry)
    except UnreadableAdmissionError:
        return False
    if before is None or admission is None:
        return False
    return (before.image, before.fingerprint) == (admission.image, admission.fingerprint)


def store_image(
    settings: Settings, name: str, trust: TrustOverride, *, replace: bool = False
) -> Stored:
    """Put the artifact of an image of the engine into the store, beside the one that is in use.

    Raises:
        UntrustedError: It was not built here, and unsigned images are not accepted.
    """
    begun = time.monotonic()
    image = find_image(settings.engine(), name)
    pin = image_pin(image, name)
    entry = Layout(settings.root, pin.driver.name).entry(pin.short_digest)
    if not (trust.insecure or settings.config.trust.rule(ENGINE, pin.driver.name).insecure):
        require_built_here(
            settings.state,
            image,
            name,
            resolution="Build it here, as the user who installs it: provision build"
            f" {pin.driver.name}; or install it as an unsigned image: provision install {name}"
            " --insecure",
        )
    admission = _admission_here(settings, image, name)
    if not replace and (stored := _usable(settings, pin, admission)):
        return stored
    return Stored(add(settings, image, name, pin), entry, "engine", _total(begun))


def _admission_here(settings: Settings, image: Image, name: str) -> Admission | None:
    """Return who vouches for an image of the engine; None: it was built here."""
    is_own = is_built_here(settings.state, image)
    return None if is_own else Admission(image=name, repository=ENGINE, once=True)


def add(settings: Settings, image: Image, name: str, pin: Pin) -> Manifest:
    """Unpack, verify and sign an image of the engine, and make it an entry of the store.

    The host's key signs nothing that was not built here; such an image counts as unsigned.
    """
    layout = Layout(settings.root, pin.driver.name)
    admission = _admission_here(settings, image, name)

    def fill(draft: Path) -> None:
        report(Note(f"unpack {layout.entry(pin.short_digest)}"))
        extract(settings.engine(), image, draft, state=settings.state)
        record_admission(draft, admission)
        finish_draft(settings, draft, name, pin_label=pin.digest, signs=admission is None)

    with drafted(layout, pin.short_digest, fill) as draft, changing(layout):
        adopt(layout, pin.short_digest, draft, replace=True)
        return load_manifest(layout.entry(pin.short_digest))


def _of_pin(settings: Settings, pin: Pin) -> ArtifactImage | None:
    """Return a registry's image of a Pin that others have built, if the engine has none."""
    if not settings.config.asks_registries:
        return None
    try:
        if find_built(settings.engine(), pin, settings.state) is not None:
            return None
    except NotFoundError:
        report(Note("No engine answers; a registry may have what would be built"))
    trust = TrustOverride()
    accept = partial(check_age, settings, trust=trust)
    return find_pin_in_registries(settings, pin, trust, accept=accept)


def _push(settings: Settings, pin: Pin, image_id: str) -> None:
    """Push and sign what was built, where provision.toml says so; the host has it in any case."""
    reference = host_reference(settings, pin)
    if not reference or not settings.config.registry.push:
        return
    try:
        signs = settings.config.registry.sign_key is not None
        signer = configured_signer(settings) if signs else None
        _pushed, signed = publish(settings, pin, image_id, reference, signer)
        if signed is not None:
            report(Note(f"Signed {signed.reference}"))
    except ProvisionError as error:
        report(Note(f"{error.message} {error.details or ''}".strip()))


def store_pulled(
    settings: Settings, trusted: ArtifactImage, trust: TrustOverride, *, replace: bool = False
) -> Stored:
    """Put the artifact of a registry's image into the store, beside the one that is in use."""
    begun = time.monotonic()
    check_age(settings, trusted, trust)
    pin = trusted.pin
    layout = Layout(settings.root, pin.driver.name)
    entry = layout.entry(pin.short_digest)
    is_there = entry.is_dir()
    admission = _admission(settings, trusted, trust)
    if not replace and (stored := _usable(settings, pin, admission)):
        with changing(layout):
            # A second pull may have been faster, with a newer artifact.
            check_age(settings, trusted, trust)
            record_serial(layout, trusted)
        return stored
    received = 0

    def fill(draft: Path) -> None:
        nonlocal received
        received = _unpack(
            trusted, draft, lambda draft: complete_from_store(layout, entry.name, draft)
        )
        try:
            _finish_pulled(settings, trusted, draft, admission)
        except DamagedError:
            if received >= trusted.manifest.size:
                raise
            report(Note("What the store has of it is damaged; pulling all of it"))
            shutil.rmtree(draft)
            received += _unpack(trusted, draft)
            _finish_pulled(settings, trusted, draft, admission)

    with drafted(layout, entry.name, fill) as draft, changing(layout):
        # As above.
        check_age(settings, trusted, trust)
        added = adopt(layout, entry.name, draft, replace=is_there)
        record_serial(layout, trusted)
        # Before garbage collection may remove the entry, which nothing needs yet.
        manifest = load_manifest(entry)
    origin: Origin = "registry" if added else "store"
    return Stored(manifest, entry, origin, _total(begun), received)


@contextmanager
def unpacked_image(settings: Settings, reference: str) -> Iterator[tuple[Path, Report]]:
    """Compare the artifact in an image with its manifest; it is unpacked for the block."""
    engine = settings.engine()
    image = find_image(engine, reference)
    with scratch(settings.state, "verify") as folder:
        artifact = folder / "artifact"
        extract(engine, image, artifact, state=settings.state)
        yield artifact, verify_artifact(artifact, pin_label=pin_label(image))


@contextmanager
def unpacked_pull(settings: Settings, trusted: ArtifactImage) -> Iterator[tuple[Path, Report]]:
    """Download an image's artifact and compare it with its manifest; it is kept for the block."""
    with scratch(settings.state, "verify") as folder:
        draft = folder / "artifact"
        _unpack(trusted, draft)
        yield draft, verify_artifact(draft, pin_label=trusted.pin.digest)


def unpack_pulled(settings: Settings, trusted: ArtifactImage, folder: Path) -> Manifest:
    """Download an image's artifact into a new folder, and sign it as this host does."""
    _unpack(trusted, folder)
    name, pin_label = str(trusted.reference), trusted.pin.digest
    # The key of [signing] signs only modules of a known origin.
    signs = trusted.verified is not None
    return verify_and_sign(settings, folder, name, pin_label=pin_label, signs=signs)


def _admission(settings: Settings, trusted: ArtifactImage, trust: TrustOverride) -> Admission:
    repository, verified = trusted.reference.name, trusted.verified
    rule = settings.config.trust.rule(repository, trusted.pin.driver.name)
    is_once = trust.public_key is not None or (trust.insecure and not rule.insecure)
    if verified is None:
        return Admission(image=str(trusted.reference), repository=repository, once=is_once)
    return Admission(
        image=str(trusted.reference),
        repository=repository,
        key=verified.key,
        fingerprint=verified.fingerprint,
        serial=verified.facts.serial if verified.facts else None,
        once=is_once,
    )


def _finish_pulled(
    settings: Settings, trusted: ArtifactImage, draft: Path, admission: Admission
) -> None:
    name = str(trusted.reference)
    signs = trusted.verified is not None
    record_admission(draft, admission)
    if not signs and settings.config.signing.key is not None:
        report(Note(f"This host's key does not sign the modules of {name}: unsigned"))
    finish_draft(settings, draft, name, pin_label=trusted.pin.digest, signs=signs)


def _unpack(
    trusted: ArtifactImage, draft: Path, shared: Callable[[Path], bool] = lambda _draft: False
) -> int:
    """Unpack an image's layers into a new folder, which a failure removes.

    Args:
        shared: Adds the missing files from elsewhere, and returns whether all of them were there.

    Returns:
        The bytes that were downloaded.
    """
    draft.mkdir()
    try:
        unpacker = Unpacker(draft, strip=_FOLDER, ignores_others=True)
        received = unpack_layers(
            trusted, draft.parent, unpacker.unpack, is_complete=lambda: shared(draft)
        )
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error(error, draft) from error
        raise
    return received


def _total(begun: float) -> dict[str, float]:
    return {"total": time.monotonic() - begun}


_USERSPACE = "driver"


def finish_draft(
    settings: Settings, draft: Path, name: str, *, pin_label: str, signs: bool
) -> None:
    """Verify, sign and label an unpacked image, before it becomes an entry of the store.

    Args:
        signs: Whether the host's key may sign its modules, because it was built here or its
            signature was verified.
    """
    manifest = verify_and_sign(settings, draft, name, pin_label=pin_label, signs=signs)
    link_modules(draft)
    label_entry(draft, manifest, Layout(settings.root, manifest.pin.driver.name))


def verify_and_sign(
    settings: Settings, folder: Path, name: str, *, pin_label: str, signs: bool
) -> Manifest:
    """Verify an unpacked image, and sign its modules as this host does."""
    manifest = verify_artifact(folder, pin_label=pin_label).require_whole(f"The image '{name}'")
    if signs:
        sign_modules(folder, manifest, settings.config.signing, root=settings.root)
    return manifest


def complete_from_store(layout: Layout, name: str, draft: Path) -> bool:
    """Complete the user space of a draft from the store, if the store has all missing files.

    Args:
        name: The entry that the draft becomes; no file is taken from it.

    Returns:
        Whether the draft has every file of its manifest now; if not, nothing was added.
    """
    manifest = stored_manifest(draft)
    # Else it is in another layer, or damaged; the whole artifact is verified later.
    if not manifest or not all((draft / one.path).is_file() for one in manifest.modules):
        return False
    lacking = [file for file in manifest.files if not os.path.lexists(_place(draft, file))]
    if not lacking:
        return True
    with changing(layout):
        sources = _sources(layout, name, lacking)
        if sources is None:
            return False
        for file in lacking:
            target = _place(draft, file)
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _link(sources[file.path], target)
    size = sum(file.size or 0 for file in lacking)
    report(Note(f"{len(lacking)} files ({size / 1e6:.1f} MB) are in the store, and not pulled"))
    return True


def _place(entry: Path, file: DriverFile) -> Path:
    return entry / _USERSPACE / file.path.lstrip("/")


def _sources(layout: Layout, name: str, lacking: list[DriverFile]) -> dict[str, Path] | None:
    found: dict[str, Path] = {}
    for entry, manifest in _entries(layout, name):
        theirs = {_identity(file) for file in manifest.files}
        for file in lacking:
            if file.path not in found and _identity(file) in theirs and _is_there(entry, file):
                found[file.path] = _place(entry, file)
        if len(found) == len(lacking):
            return found
    return None


def _identity(file: DriverFile) -> tuple[str | None, ...]:
    """Return the fields that a linked file must share; SELinux labels depend on the kind."""
    return (file.path, file.kind, file.sha256, file.mode, file.link)


def _is_there(entry: Path, file: DriverFile) -> bool:
    path = _place(entry, file)
    try:
        if file.link is not None:
            return path.is_symlink() and str(path.readlink()) == file.link
        return not path.is_symlink() and path.stat().st_size == file.size
    except OSError:
        return False


def _entries(layout: Layout, name: str) -> Iterator[tuple[Path, Manifest]]:
    """Yield a driver's entries with their manifests, the one that is in use first."""
    current = layout.linked(layout.current)
    for digest in sorted(entries(layout), key=lambda one: current is None or one != current.name):
        path = layout.entry(digest)
        if digest != name and (manifest := stored_manifest(path)):
            yield path, manifest


def _link(source: Path, target: Path) -> None:
    if source.is_symlink():
        # Its target was checked when it was unpacked: it does not lead out of the artifact.
        target.symlink_to(source.readlink())
        return
    try:
        target.hardlink_to(source)
    except OSError:
        # The file has too many links, or the file system has none.
        shutil.copy2(source, target)
