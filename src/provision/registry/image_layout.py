"""OCI image layouts: images in a folder or in a tar archive, outside of registries.

A layout keeps manifests unchanged, and so the digests that were signed; signatures lie under their
tags, as in a registry.
Source: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from provision.errors import NotFoundError, ProvisionError
from provision.files import write_atomic
from provision.progress import Progress, silent
from provision.registry.manifests import (
    BLOBS,
    LONGEST_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Content,
    Descriptor,
    Index,
    Manifest,
    blob_path,
    content_digest,
    parse_manifest,
)
from provision.registry.names import DIGEST, Reference
from provision.registry.storage import (
    Files,
    FolderFiles,
    compare_digest,
    copy_blob,
    read_small,
    refused,
)

INDEX = "index.json"
MARKER = "oci-layout"
MARKER_TEXT = '{"imageLayoutVersion":"1.0.0"}'
# https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
REF_NAME = "org.opencontainers.image.ref.name"
# How `cosign save` marks what it writes: image and signatures, without names.
_COSIGN_KIND = "kind"
_COSIGN_SIGNATURES = "dev.cosignproject.cosign/sigs"
_LONGEST_MARKER = 4096
_BLOBS = "blobs/sha256"


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The images of an OCI image layout: a ``Repository``."""

    files: Files
    reference: Reference
    # The entries of its index by tag; entries without a tag by digest.
    names: Mapping[str, Descriptor]

    def at(self, reference: Reference) -> Self:
        """Return the same layout for another of its images."""
        return replace(self, reference=reference)

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest."""
        digest = name
        if not DIGEST.fullmatch(name):
            if name not in self.names:
                raise NotFoundError(
                    f"'{self.files.name}' has no image '{name}'.",
                    resolution="Check the name: the folder's index.json lists the images.",
                )
            digest = self.names[name].digest
        data = read_small(self.files, self._path(digest), LONGEST_MANIFEST)
        compare_digest(self.files.name, digest, content_digest(data))
        return Content(data, digest)

    def config(self, digest: str, manifest: Manifest) -> bytes:
        """Return the configuration of an image."""
        del digest
        return read_small(self.files, self._path(manifest.config.digest), LONGEST_MANIFEST)

    def fetch(
        self,
        digest: str,
        manifest: Manifest,
        layers: Collection[Descriptor],
        folder: Path,
        *,
        progress: Progress = silent,
    ) -> None:
        """As ``Repository.fetch``."""
        del digest, manifest
        (folder / BLOBS).mkdir(exist_ok=True)
        for layer in layers:
            path, target = self._path(layer.digest), blob_path(folder, layer)
            if not target.exists():
                copy_blob(self.files, path, layer, target, progress)

    def tags(self) -> tuple[str, ...]:
        """Return the names in the index."""
        return tuple(self.names)

    def _path(self, digest: str) -> str:
        path = self._blob(digest)
        try:
            self.files.size(path)
        except NotFoundError as error:
            raise refused(self.files.name, f"it names {digest}, which is not in it") from error
        return path

    @staticmethod
    def _blob(digest: str) -> str:
        return f"{_BLOBS}/{digest.removeprefix('sha256:')}"


def open_layout(files: Files, reference: Reference) -> ImageLayout:
    """Return the images of a layout, of which nothing is trusted."""
    try:
        marker = read_small(files, MARKER, _LONGEST_MARKER)
    except NotFoundError as error:
        raise ProvisionError(
            f"'{files.name}' is no OCI image layout: it has no file '{MARKER}'.",
            resolution="If it is an archive of 'docker save', convert it:"
            f" skopeo copy docker-archive:{files.name} oci-archive:NEW.tar",
        ) from error
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


@dataclass(frozen=True, slots=True)
class LayoutWriter(ImageLayout):
    """An image layout in a folder of our own, that images are added to."""

    files: FolderFiles
    names: dict[str, Descriptor]

    def put_image(self, tag: str, manifest: bytes, blobs: Sequence[bytes]) -> str:
        """As ``Writable.put_image``."""
        for blob in (*blobs, manifest):
            digest = content_digest(blob)
            write_atomic(self.files.folder / self._blob(digest), blob)
        self._set_tag(tag, digest, manifest)
        return digest

    def tag(self, digest: str, tag: str) -> None:
        """As ``Writable.tag``."""
        self._set_tag(tag, digest, self.manifest(digest).data)

    def _set_tag(self, tag: str, digest: str, manifest: bytes) -> None:
        index = self.files.folder / INDEX
        entry = {
            "mediaType": json.loads(manifest).get("mediaType") or OCI_MANIFEST,
            "digest": digest,
            "size": len(manifest),
            "annotations": {REF_NAME: tag},
        }
        kept = [
            one
            for one in json.loads(index.read_text())["manifests"]
            if one.get("annotations", {}).get(REF_NAME) != tag
        ]
        _write_index(index, [*kept, entry])
        self.names[tag] = Descriptor.model_validate(entry)


def writable_layout(folder: Path, reference: Reference) -> LayoutWriter:
    """Return the layout in a folder of our own; made where it is missing."""
    (folder / _BLOBS).mkdir(parents=True, exist_ok=True)
    if not (folder / MARKER).exists():
        write_atomic(folder / MARKER, MARKER_TEXT)
    if not (folder / INDEX).exists():
        _write_index(folder / INDEX, [])
    files = FolderFiles(folder)
    return LayoutWriter(files, reference, _names(files))


def _write_index(path: Path, manifests: Sequence[object]) -> None:
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(manifests)}
    write_atomic(path, json.dumps(document, indent=1) + "\n")


def prune(folder: Path) -> None:
    """Remove blobs that no image of a layout uses."""
    layout = open_layout(FolderFiles(folder), Reference("", folder.name))
    used: set[str] = set()
    waiting = [one.digest for one in layout.names.values()]
    while waiting:
        digest = waiting.pop()
        used.add(digest)
        found = parse_manifest(layout.manifest(digest).data, digest)
        if isinstance(found, Manifest):
            used.update(blob.digest for blob in (found.config, *found.layers))
        else:
            waiting += [one.digest for one in found.manifests]
    for path in (folder / _BLOBS).iterdir():
        if f"sha256:{path.name}" not in used:
            path.unlink()
