"""Artifacts in images and in a store: verifying, installing and activating them on a host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from provision.build.image import pin_label
from provision.build.provenance import is_built_here, require_built_here
from provision.build.workspace import Settings
from provision.catalogue.cards import cards_here, undriven
from provision.documents import parse_json
from provision.engine.docker_api import Image
from provision.engine.scratch import scratch
from provision.engine.transfer import extract, find_image, read_file
from provision.errors import NotFoundError, ProvisionError
from provision.kmod.verify import Report, verify_artifact
from provision.manifest import MANIFEST, Manifest, load_manifest
from provision.progress import Note, report
from provision.registry.find import TrustOverride
from provision.store.activate import apply, plan, plan_removal
from provision.store.admission import distrust
from provision.store.entries import (
    adopt,
    linked_kernels,
    remove_leftovers,
    unlink_kernel,
)
from provision.store.layout import Layout
from provision.store.locks import changing, switching
from provision.store.managed_files import Change
from provision.store.obtain import ENGINE, drafted_image
from provision.store.state import refuse_newer


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an installation."""

    # The manifest of the artifact that is in use now.
    manifest: Manifest
    entry: Path
    # The changes that were or would be made; empty if it was in use already.
    changes: tuple[Change, ...]


@contextmanager
def unpacked_image(settings: Settings, reference: str) -> Iterator[tuple[Path, Report]]:
    """Compare the artifact in an image with its manifest; it is unpacked for the block."""
    engine = settings.engine()
    image = find_image(engine, reference)
    with scratch(settings.state, "verify") as folder:
        artifact = folder / "artifact"
        extract(engine, image, artifact, state=settings.state)
        yield artifact, verify_artifact(artifact, pin_label=pin_label(image))


def install_image(
    settings: Settings,
    reference: str,
    consent: TrustOverride,
    *,
    again: bool = False,
    replace: bool = False,
    dry_run: bool = False,
    any_card: bool = False,
) -> Installed:
    """Put the artifact of an image of the engine into the store of a host, and activate it.

    Args:
        any_card: Whether the host's cards have no say.

    Raises:
        NotFoundError: It drives no card of the host.
        ForeignImageError: It was not built here, and unsigned images are not accepted.
    """
    image = find_image(settings.engine(), reference)
    manifest = _manifest_of(settings, image, reference)
    if not any_card:
        require_card(settings, manifest)
    layout = Layout(settings.root, manifest.pin.driver.name)
    entry = layout.entry(manifest.pin.short_digest)
    if not (consent.insecure or settings.config.trust.rule(ENGINE, layout.driver).insecure):
        require_built_here(
            settings.state,
            image,
            reference,
            resolution="Build it here, as the user who installs it: provision install"
            f" {layout.driver}. To install it as an unsigned image: provision install {reference}"
            " --insecure",
        )
    with nullcontext() if dry_run else _locked(layout):
        # A foreign file in the way is found before anything is unpacked.
        planned = plan(layout, manifest, replace=replace)
    if dry_run:
        return Installed(manifest, entry, tuple(planned))
    while True:
        drafted: AbstractContextManager[Path | None] = nullcontext()
        # What somebody else vouches for is not taken for what was built here.
        is_stale = is_built_here(settings.state, image) and _is_distrusted(settings, layout, entry)
        if again or is_stale or not verify_entry(layout, entry):
            drafted = drafted_image(settings, image, reference, manifest.pin)
        with drafted as draft, _switched(layout):
            if draft is None and not entry.is_dir():
                # Garbage collection has removed it since it was verified.
                continue
            changes = plan(layout, manifest, replace=replace)
            added = draft is not None and adopt(
                layout, entry.name, draft, replace=again or is_stale
            )
            if added and not any(change.kind == "unpack" for change in changes):
                changes.insert(0, Change("unpack", entry))
            _apply(layout, changes)
            return Installed(manifest, entry, tuple(changes))


def require_card(settings: Settings, manifest: Manifest) -> None:
    """Refuse an artifact that drives none of a host's cards, and name those that it does not drive.

    Raises:
        NotFoundError: It drives none.
    """
    driver = manifest.pin.driver
    try:
        recipe = settings.catalogue.entry(driver.name).recipe
    except NotFoundError:
        # Which devices it is for is not known here.
        return
    cards = cards_here(recipe, settings.root)
    lacking = undriven(cards, manifest)
    what = f"{driver.name} {driver.version} ({driver.flavour})"
    if lacking and len(lacking) == len(cards):
        raise NotFoundError(
            f"{what} drives no card of this host, by its own list.",
            resolution=f"Install what they need: provision install {driver.name}. To install this"
            " all the same, add --force.",
            details="\n".join(f"{card.name}: {card.needs}" for card in lacking),
        )
    for card in lacking:
        report(Note(f"{what} does not drive {card.name}, by its own list of cards"))


def _is_distrusted(settings: Settings, layout: Layout, entry: Path) -> bool:
    return distrust(settings.config, settings.root, layout.driver, entry) is not None


def activate_entry(
    layout: Layout, entry: Path, *, replace: bool = False, dry_run: bool = False
) -> Installed:
    """Activate an artifact of the store: links, vendor file, loader configuration."""
    with nullcontext() if dry_run else _switched(layout):
        manifest = load_manifest(entry)
        changes = plan(layout, manifest, replace=replace)
        if not dry_run:
            _apply(layout, changes)
    return Installed(manifest, entry, tuple(changes))


def deactivate(layout: Layout) -> None:
    """Deactivate a driver: remove its files outside of the store, and the links in the store.

    The links of its kernels go last, so that the next run completes one that was killed.
    """
    with _switched(layout):
        refuse_newer(layout)
        changes = plan_removal(layout)
        _apply(layout, changes)
        layout.state.unlink(missing_ok=True)
        for release in linked_kernels(layout):
            unlink_kernel(layout, release)


@contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """Hold the lock of a driver, and remove the leftovers of killed runs."""
    with changing(layout):
        for path in remove_leftovers(layout):
            report(Note(f"Removed what an interrupted run left behind: {path}"))
        yield


@contextmanager
def _switched(layout: Layout) -> Iterator[None]:
    """Hold the locks under which a driver is switched."""
    with switching(layout.root), _locked(layout):
        yield


def _apply(layout: Layout, changes: Iterable[Change]) -> None:
    apply(layout, changes, on_change=lambda change: report(Note(str(change))))


def verify_entry(layout: Layout, entry: Path) -> bool:
    """Verify an entry of the store under the driver's lock; return whether it exists."""
    with _locked(layout):
        if not entry.is_dir():
            return False
        verify_artifact(entry).require_whole(f"The store entry '{entry}'")
        return True


def _manifest_of(settings: Settings, image: Image, reference: str) -> Manifest:
    try:
        text = read_file(settings.engine(), image, str(MANIFEST), state=settings.state)
    except ProvisionError as error:
        raise ProvisionError(
            f"'{reference}' is no artifact image: it has no {MANIFEST}.",
            resolution="Name an image that 'provision build' made.",
            details=error.details,
        ) from error
    return parse_json(text.decode(errors="replace"), Manifest, name=f"{reference}:{MANIFEST}")
