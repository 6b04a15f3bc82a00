"""Sends an artifact image to a registry, from where other hosts pull it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provision.errors import ProvisionError
from provision.image.engine import Engine
from provision.image.references import split_reference
from provision.image.stream import transfer
from provision.progress import Note, Progress, silent


@dataclass(frozen=True, slots=True)
class Pushed:
    """An image in a registry: its name there and the registry's digest of it."""

    reference: str
    digest: str


def push(engine: Engine, image_id: str, reference: str, *, progress: Progress = silent) -> Pushed:
    """Push an image under a name.

    Args:
        engine: Has the image; its own credentials count (``docker login``).
        image_id: The image.
        reference: ``registry/name:tag``.
        progress: Told the bytes sent.

    Raises:
        ProvisionError: The registry refused it or can't be reached.
    """
    engine.tag(image_id, reference)
    progress(Note(f"Pushing {reference}"))
    digest = None
    for message in engine.push(reference):
        if "error" in message:
            registry = split_reference(reference)[0].split("/", 1)[0]
            raise ProvisionError(
                f"'{reference}' could not be pushed.",
                resolution=f"Log in to the registry if it wants that (docker login {registry}), "
                "and look whether the engine reaches it.",
                details=str(message["error"]),
            )
        aux = message.get("aux")
        digest = aux.get("Digest", digest) if isinstance(aux, Mapping) else digest
        for event in transfer(message):
            progress(event)
    if digest is None:
        raise ProvisionError(f"The registry named no digest for '{reference}'.")
    return Pushed(reference, str(digest))
