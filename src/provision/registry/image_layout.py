"""Images outside of registries: OCI image layouts, and archives of `docker save`.

Both implement ``Repository``, so that the code that examines, verifies and unpacks images need not
distinguish them. An OCI image layout keeps manifests unchanged, and so the digests that were
signed; it has signatures under their tags, as a registry does. ``registry.docker_archive`` reads
the archives. Source:
https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from provision.errors import NotFoundError
from provision.progress import Progress, silent
from provision.registry.docker_archive import DockerArchive, open_docker_archive
from provision.registry.manifests import (
    LONGEST_MANIFEST,
    Content,
    Descriptor,
    Index,
    parse_manifest,
)
from provision.registry.names import DIGEST, Reference
from provision.registry.storage import Files, compare_digest, copy_blob, read_small, refused
from provision.registry.transport import content_digest

INDEX = "index.json"
MARKER = "oci-layout"
MARKER_TEXT = '{"imageLayoutVersion":"1.0.0"}'
# https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
REF_NAME = "org.opencontainers.image.ref.name"
# How `cosign save` marks what it writes: image and signatures, without names.
_COSIGN_KIND = "kind"
_COSIGN_SIGNATURES = "dev.cosignproject.cosign/sigs"
_LONGEST_MARKER = 4096


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The images of an OCI image layout.

    Attributes:
        files: Its files.
        reference: The selected image.
        names: The entries of its index by tag; entries without a tag by digest.
    """

    files: Files
    reference: Reference
    names: Mapping[str, Descriptor]

    def at(self, reference: Reference) -> Self:
        """Return the same layout for another of its images."""
        return replace(self, reference=reference)

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest.

        Raises:
            NotFoundError: The index has no such name.
            WrongContentError: The content has another digest.
            ProvisionError: It is too large, or a blob that the index names is missing.
        """
        digest = name
        if not DIGEST.fullmatch(name):
            if name not in self.names:
                raise NotFoundError(f"'{self.files.name}' has no image '{name}'.")
            digest = self.names[name].digest
        data = read_small(self.files, self._path(digest), LONGEST_MANIFEST)
        compare_digest(self.files.name, digest, content_digest(data))
        return Content(data, digest)

    def blob(self, descriptor: Descriptor, limit: int) -> bytes:
        """Return a small blob; errors as ``manifest``."""
        data = read_small(self.files, self._path(descriptor.digest), min(limit, descriptor.size))
        compare_digest(self.files.name, descriptor.digest, content_digest(data))
        return data

    def download(
        self, descriptor: Descriptor, destination: Path, *, progress: Progress = silent
    ) -> None:
        """Write a blob to a new file; errors as ``manifest``, and OSError: the disk is full."""
        path = self._path(descriptor.digest)
        copy_blob(self.files, path, descriptor, destination, progress)

    def tags(self) -> tuple[str, ...]:
        """Return the names in the index."""
        return tuple(self.names)

    def _path(self, digest: str) -> str:
        path = f"blobs/{digest.replace(':', '/')}"
        try:
            self.files.size(path)
        except NotFoundError as error:
            raise refused(self.files.name, f"it names {digest}, which is not in it") from error
        return path


def open_layout(files: Files, reference: Reference) -> ImageLayout | DockerArchive:
    """Return the images of a layout or archive.

    Args:
        files: Its files.
        reference: Its name.

    Raises:
        ProvisionError: It is neither, or ambiguous.
    """
    try:
        marker = read_small(files, MARKER, _LONGEST_MARKER)
    except NotFoundError:
        return open_docker_archive(files, reference)
    try:
        version = json.loads(marker)["imageLayoutVersion"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise refused(files.name, f"'{MARKER}' in it is not valid") from error
    if version != "1.0.0":
        raise refused(files.name, f"it is an image layout of version {str(version)[:20]}")
    return ImageLayout(files, reference, _names(files))


def _names(files: Files) -> dict[str, Descriptor]:
    name = f"{files.name}: {INDEX}"
    try:
        index = parse_manifest(read_small(files, INDEX, LONGEST_MANIFEST), name)
    except NotFoundError as error:
        raise refused(files.name, f"it has no '{INDEX}'") from error
    if not isinstance(index, Index):
        raise refused(files.name, f"'{INDEX}' in it is no index")
    found: dict[str, Descriptor] = {}
    signatures = []
    for one in index.manifests:
        tag = one.annotations.get(REF_NAME)
        if one.annotations.get(_COSIGN_KIND) == _COSIGN_SIGNATURES and tag is None:
            signatures.append(one)
            continue
        # Some programs write the whole name there.
        tag = one.digest if tag is None else tag.rpartition("/")[2].rpartition(":")[2]
        if found.get(tag, one).digest != one.digest:
            raise refused(files.name, f"two images in it are called '{tag[:80]}'")
        found[tag] = one
    if len(signatures) == 1 and len(found) == 1:
        (image,) = found.values()
        found[f"{image.digest.replace(':', '-')}.sig"] = signatures[0]
    return found
