"""Removes images from the engine that this program made and this host has no use for."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, nullcontext
from pathlib import Path

from provision.agent.garbage import Removed, kept_digests
from provision.build.artifact_image import DIGEST_LABEL
from provision.errors import ProvisionError
from provision.pipeline.image_builds import open_engine
from provision.pipeline.workspace import load_settings
from provision.progress import Note, Progress, silent
from provision.store.locks import building

_PREFIX = "provision/"
_DIGITS = 12


def remove_images(
    root: Path, removed: Iterable[Removed], *, dry_run: bool = False, progress: Progress = silent
) -> list[str]:
    """Remove artifact images whose artifact the host's store has not, and return their names.

    Images that carry another name too, or that a container uses, stay.

    Args:
        root: Root of the host.
        removed: The artifacts that were removed just now, or would be.
        dry_run: Only say what would be done.
        progress: Receives what is done.

    Raises:
        NotFoundError: No engine answers.
        ProvisionError: The engine failed.
    """
    gone = []
    # An image that an agent has just built is not in the store yet.
    waiting = nullcontext() if dry_run else building(root, progress)
    with waiting, closing(open_engine(load_settings(root))) as engine:
        kept = kept_digests(root) - {one.digest for one in removed}
        for image in engine.images_with_label(DIGEST_LABEL):
            digest = image.labels[DIGEST_LABEL].removeprefix("sha256:")[:_DIGITS]
            is_ours = len(image.tags) == 1 and image.tags[0].startswith(_PREFIX)
            if digest in kept or not is_ours:
                continue
            if not dry_run:
                try:
                    engine.remove(image.id, with_parents=True)
                except ProvisionError as error:
                    progress(Note(f"{image.tags[0]} stays: {error.details or error.message}"))
                    continue
            gone.append(image.tags[0])
    return gone
