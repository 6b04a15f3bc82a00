"""What is looked at before an image is installed: its content, and the host's cards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.build.image import pin_label
from provision.build.workspace import Settings
from provision.catalogue.cards import cards_of, undriven
from provision.engine.scratch import scratch
from provision.engine.transfer import extract, find_image
from provision.errors import NotFoundError
from provision.kmod.verify import Report, verify_artifact
from provision.manifest import Manifest
from provision.progress import Note, report


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
