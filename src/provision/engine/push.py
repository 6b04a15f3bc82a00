"""Sends an artifact image to a registry, from where other hosts pull it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from provision.engine.docker_api import Engine
from provision.engine.references import split_reference
from provision.engine.stream import transfer
from provision.errors import ProvisionError
from provision.progress import Note, Progress, silent

_LICENCES = "org.opencontainers.image.licenses"
# Of no list of free licences, not looked at, or disputed for modules of a kernel under the GPL.
_RESTRICTED = re.compile(r"\b(?:LicenseRef-[A-Za-z0-9.-]+|NOASSERTION|CDDL-[0-9.]+)")


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
        progress: Told the bytes sent, and of licences that may forbid it.

    Raises:
        ProvisionError: The registry refused it or can't be reached.
    """
    image = engine.image(image_id)
    licences = _RESTRICTED.findall(image.labels.get(_LICENCES, "") if image else "")
    if licences:
        names = ", ".join(dict.fromkeys(licences))
        progress(
            Note(
                f"Warning: {names} may forbid to pass this image on. Read it before others than you"
                f" can pull '{reference}'."
            )
        )
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
