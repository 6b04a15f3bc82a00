"""Artifacts in images and in a store: verifying, installing and activating them on a host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provision.build.image import pin_label
from provision.build.workspace import Settings
from provision.catalogue.cards import cards_of, undriven
from provision.engine.scratch import scratch
from provision.engine.transfer import extract, find_image
from provision.errors import NotFoundError
from provision.kmod.verify import Report, verify_artifact
from provision.manifest import Manifest, load_manifest
from provision.progress import Note, report
from provision.store.activate import apply, plan, plan_removal
from provision.store.entries import (
    linked_kernels,
    remove_leftovers,
    unlink_kernel,
)
from provision.store.layout import Layout
from provision.store.locks import changing, switching
from provision.store.managed_files import Change
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
    cards = cards_of(recipe, settings.pci)
    lacking = undriven(cards, manifest)
    what = f"{driver.name} {driver.version} ({driver.flavour})"
    if lacking and len(lacking) == len(cards):
        raise NotFoundError(
            f"{what} drives no card of this host, by its own list.",
            resolution="Have what they need installed: provision apply. To use this all the same,"
            " add --force.",
            details="\n".join(f"{card.name}: {card.needs}" for card in lacking),
        )
    for card in lacking:
        report(Note(f"{what} does not drive {card.name}, by its own list of cards"))


def activate_entry(layout: Layout, entry: Path, *, replace: bool = False) -> Installed:
    """Activate an artifact of the store: links, vendor file, loader configuration."""
    with _switched(layout):
        manifest = load_manifest(entry)
        changes = plan(layout, manifest, replace=replace)
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
