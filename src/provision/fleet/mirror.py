"""Copies artifact images with their signatures from one registry to another.

Images are chosen by driver, kernel and distro, and verified with this machine's keys before any
layer is copied. Manifests stay byte for byte the same, and so do their signatures. Content that the
target has is not sent again, so an interrupted copy can be continued.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from provision.engine.scratch import scratch
from provision.errors import NotFoundError
from provision.fleet.mirror_selection import (
    Chosen,
    ImageSelection,
    RegistryAccess,
    choose,
)
from provision.pipeline.registries import trusted_keys
from provision.progress import Note, Step
from provision.registry.attached_signatures import signer_of
from provision.registry.client import Client
from provision.registry.copying import ImageCopier, uploader
from provision.registry.image_signature import UntrustedError
from provision.registry.manifests import CopyTarget, Index, parse_manifest
from provision.registry.names import CATALOGUE


@dataclass(slots=True)
class Mirrored:
    """The result of a copy.

    Attributes:
        chosen: What was selected.
        sent: Bytes that were sent.
        blobs: Contents that were sent.
        present: Contents that the target had.
        refused: What was not copied, each with the reason.
    """

    chosen: tuple[Chosen, ...]
    sent: int = 0
    blobs: int = 0
    present: int = 0
    refused: list[str] = field(default_factory=list)


def mirror(
    access: RegistryAccess, old: str, new: str, selection: ImageSelection, *, dry_run: bool = False
) -> Mirrored:
    """Copy artifact images from one registry to another.

    Args:
        access: How the registries are reached.
        old: From where: ``host[:port][/prefix]``.
        new: To where.
        selection: What is copied.
        dry_run: Only say what would be copied.

    Raises:
        As ``choose``; OSError: the disk for a layer on its way is full.
    """
    chosen, refused = choose(access, old, selection)
    done = Mirrored(chosen, refused=refused)
    if dry_run:
        return done
    with scratch(access.settings.state, "mirror", progress=access.progress) as folder:
        for number, one in enumerate(chosen, 1):
            access.progress(Step(number, len(chosen), f"{one.driver} {', '.join(one.tags)}"))
            target = uploader(access.client(f"{new}/{one.driver}"))
            copier = ImageCopier(one.repository, target, folder, access.progress)
            copier.copy(one.content, one.tags)
            done.sent += copier.size
            done.blobs += copier.blobs
            done.present += copier.present
        for driver in dict.fromkeys(one.driver for one in chosen):
            source = access.client(f"{old}/{driver}")
            target = uploader(access.client(f"{new}/{driver}"))
            _copy_catalogue(access, source, target, driver, folder)
    return done


def _copy_catalogue(
    access: RegistryAccess, source: Client, target: CopyTarget, driver: str, folder: Path
) -> None:
    """Copy the signed list of a repository's images, if the target has all of these."""
    try:
        content = source.manifest(CATALOGUE)
    except NotFoundError:
        return
    name = f"{source.reference.registry}/{source.reference.repository}"
    found = parse_manifest(content.data, f"{name}:{CATALOGUE}")
    if not isinstance(found, Index):
        return
    try:
        keys = trusted_keys(access.settings, name, driver, access.consent)
        if keys is not None:
            signer_of(source, content.digest, keys)
        for one in found.manifests:
            target.manifest(one.digest)
    except (NotFoundError, UntrustedError) as error:
        access.progress(Note(f"{name}:{CATALOGUE} is not copied: {error.message}"))
        return
    ImageCopier(source, target, folder, access.progress).copy(content, (CATALOGUE,))


def require_all(done: Mirrored) -> None:
    """Check that everything selected was copied.

    Raises:
        UntrustedError: Images were refused; all of them are named.
    """
    if done.refused:
        raise UntrustedError(
            f"{len(done.refused)} of the registry's images were not copied.",
            resolution="Have them signed by those who build your artifacts ('provision sign'), or"
            " name the key that counts: --public-key FILE. The others were copied.",
            details="\n".join(done.refused),
        )
