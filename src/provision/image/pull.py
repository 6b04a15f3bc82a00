"""Fetches an artifact image from a registry."""

from __future__ import annotations

from provision.errors import NotFoundError, ProvisionError
from provision.image.engine import Engine, Image
from provision.image.stream import transfer
from provision.progress import Note, Progress, silent


def pull(engine: Engine, reference: str, *, progress: Progress = silent) -> Image:
    """Pull an image.

    Args:
        engine: Where it goes; its own credentials count (``docker login``).
        reference: ``registry/name:tag`` or ``registry/name@digest``.
        progress: Told the bytes received.

    Raises:
        NotFoundError: The registry doesn't have it, or can't be reached; says what the engine said.
    """
    progress(Note(f"Pulling {reference}"))
    reason = None
    try:
        for message in engine.pull(reference):
            reason = message.get("error", reason)
            for event in transfer(message):
                progress(event)
    except ProvisionError as error:
        reason = error.details or error.message
    image = engine.image(reference)
    if image is None:
        raise NotFoundError(
            f"'{reference}' could not be pulled.",
            resolution="Look whether the name is right and whether the engine reaches that"
            " registry, and log in there if it wants that (docker login).",
            details=None if reason is None else str(reason),
        )
    return image
