"""Artifact images of registries: which name means one, and whether it may be used.

A name without a registry's host is local. What a registry serves is not signed yet, so who may
write there decides what is loaded into the kernel; that needs a permission
(docs/decisions/0131).
"""

from __future__ import annotations

from provision.errors import ProvisionError
from provision.image.engine import Engine
from provision.image.pull import pull
from provision.image.references import names_registry
from provision.pin import Pin
from provision.pipeline.settings import Settings
from provision.progress import Progress, silent

_LOCAL = "provision/"


class UnsignedError(ProvisionError):
    """An image of a registry that is neither signed nor allowed."""

    def __init__(self, reference: str) -> None:
        super().__init__(
            f"'{reference}' is not signed: who may write to that registry decides what is"
            " loaded into this host's kernel.",
            resolution="If you trust all of them, allow it: --allow-unsigned on the command line,"
            " or [registry] allow_unsigned = true in /etc/provision/provision.toml. Otherwise"
            " build it here: provision build.",
        )


def registry_reference(settings: Settings, pin: Pin) -> str | None:
    """Return what the image of a Pin is called in the host's registry; None: it has none."""
    return _in_registry(settings, pin.image)


def usable_image(
    settings: Settings,
    engine: Engine,
    reference: str,
    *,
    allow_unsigned: bool = False,
    progress: Progress = silent,
) -> str:
    """Return the name by which the engine has an image, pulled if that is allowed.

    Args:
        settings: The host.
        engine: Where the image is wanted.
        reference: What the caller calls it: a local name or id, or a registry's name. A local name
            that the engine lacks is looked for in the host's registry, if it has one.
        allow_unsigned: Whether what a registry serves may be used although it is not signed.
        progress: Told how far it is.

    Raises:
        UnsignedError: It is a registry's, and that was not allowed.
        NotFoundError: The registry doesn't have it.
    """
    if not names_registry(reference):
        remote = _in_registry(settings, reference)
        if remote is None or engine.image(reference) is not None:
            return reference
        reference = remote
    if not (allow_unsigned or may_pull(settings, reference)):
        raise UnsignedError(reference)
    if engine.image(reference) is None:
        pull(engine, reference, progress=progress)
    return reference


def may_pull(settings: Settings, reference: str) -> bool:
    """Return whether provision.toml allows an unsigned image of a registry."""
    registry = settings.config.registry
    return registry.allow_unsigned and reference.startswith(f"{registry.address}/")


def _in_registry(settings: Settings, reference: str) -> str | None:
    address = settings.config.registry.address
    if address is None or not reference.startswith(_LOCAL):
        return None
    return f"{address}/{reference.removeprefix(_LOCAL)}"
