"""Writes OCI image layouts: every blob and the index appear by a rename, complete."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from provision.errors import NotFoundError
from provision.files import write_atomic
from provision.progress import Progress, silent
from provision.registry.image_layout import (
    INDEX,
    MARKER,
    MARKER_TEXT,
    REF_NAME,
    ImageLayout,
    open_layout,
)
from provision.registry.manifests import OCI_INDEX, Content, Descriptor, Manifest, parse_manifest
from provision.registry.names import Reference
from provision.registry.storage import FolderFiles
from provision.registry.transport import content_digest


@dataclass(frozen=True, slots=True)
class LayoutWriter:
    """An OCI image layout that images are copied to; made where it is missing.

    Attributes:
        folder: Its folder.
        reference: Its name.
    """

    folder: Path
    reference: Reference
    _blobs: Path = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_blobs", self.folder / "blobs/sha256")
        self._blobs.mkdir(parents=True, exist_ok=True)
        for left in self._blobs.glob(".*"):
            left.unlink(missing_ok=True)
        write_atomic(self.folder / MARKER, MARKER_TEXT)
        if not (self.folder / INDEX).exists():
            self._write_index([])

    @property
    def images(self) -> ImageLayout:
        """The layout as it is now."""
        found = open_layout(FolderFiles(self.folder), self.reference)
        if not isinstance(found, ImageLayout):
            raise TypeError(f"{self.folder} has a marker, and so is a layout")
        return found

    def at(self, reference: Reference) -> LayoutWriter:
        """Return the same layout for another of its images."""
        return replace(self, reference=reference)

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest.

        Raises:
            NotFoundError: It is missing.
        """
        if name.startswith("sha256:") and not self.has_blob(name):
            raise NotFoundError(f"'{self.folder}' has no {name}.")
        return self.images.manifest(name)

    def blob(self, descriptor: Descriptor, limit: int) -> bytes:
        """Return a small blob."""
        return self.images.blob(descriptor, limit)

    def download(
        self, descriptor: Descriptor, destination: Path, *, progress: Progress = silent
    ) -> None:
        """Write a blob to a new file."""
        self.images.download(descriptor, destination, progress=progress)

    def tags(self) -> tuple[str, ...]:
        """Return the tags."""
        return self.images.tags()

    def has_blob(self, digest: str) -> bool:
        """Return whether there is a blob, which is complete because it appears by a rename."""
        return (self._blobs / digest.removeprefix("sha256:")).is_file()

    def mount(self, digest: str, source: Reference) -> bool:
        """Return False: a layout shares no blobs with another one."""
        del digest, source
        return False

    def upload(self, descriptor: Descriptor, file: Path, *, progress: Progress = silent) -> None:
        """Add a blob by moving a file, which must be on the same file system."""
        del progress
        file.chmod(0o644)
        file.replace(self._blobs / descriptor.digest.removeprefix("sha256:"))

    def put_blob(self, data: bytes) -> Descriptor:
        """Add a small blob."""
        digest = content_digest(data)
        write_atomic(self._blobs / digest.removeprefix("sha256:"), data)
        return Descriptor(mediaType="", digest=digest, size=len(data))

    def put_manifest(self, tag: str, data: bytes, media_type: str) -> str:
        """Add a manifest under a tag; under its own digest, it does not get into the index."""
        stored = self.put_blob(data)
        if tag == stored.digest:
            return tag
        index = json.loads((self.folder / INDEX).read_text())
        kept = [one for one in index["manifests"] if one["annotations"].get(REF_NAME) != tag]
        entry = {
            "mediaType": media_type,
            "digest": stored.digest,
            "size": stored.size,
            "annotations": {REF_NAME: tag},
        }
        self._write_index([*kept, entry])
        return stored.digest

    def keep(self, tags: Collection[str], manifests: Iterable[str]) -> None:
        """Remove all images except those of some tags and digests, and all unused blobs."""
        index = json.loads((self.folder / INDEX).read_text())["manifests"]
        kept = [one for one in index if one["annotations"].get(REF_NAME) in tags]
        self._write_index(kept)
        wanted = {*manifests, *(one["digest"] for one in kept)}
        for digest in tuple(wanted):
            found = parse_manifest(self.manifest(digest).data, digest)
            if isinstance(found, Manifest):
                wanted.update(blob.digest for blob in (found.config, *found.layers))
        for path in self._blobs.iterdir():
            if f"sha256:{path.name}" not in wanted:
                path.unlink()

    def _write_index(self, manifests: Sequence[object]) -> None:
        document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(manifests)}
        write_atomic(self.folder / INDEX, json.dumps(document, indent=1) + "\n")
