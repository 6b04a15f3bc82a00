"""Protocols of repositories of images: in a registry, or in files on a medium."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self

from provision.progress import Progress, silent
from provision.registry.manifests import Content, Descriptor
from provision.registry.names import Reference


class Repository(Protocol):
    """A repository that images are read from."""

    @property
    def reference(self) -> Reference:
        """The selected image."""

    def at(self, reference: Reference) -> Self:
        """Return the same repository for another of its images."""

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest."""

    def blob(self, descriptor: Descriptor, limit: int) -> bytes:
        """Return a small blob."""

    def download(
        self, descriptor: Descriptor, destination: Path, *, progress: Progress = silent
    ) -> None:
        """Write a verified blob to a new file; on an error there is no file."""

    def tags(self) -> tuple[str, ...]:
        """Return the tags."""


class Writable(Repository, Protocol):
    """A repository that signatures can be added to."""

    def put_blob(self, data: bytes) -> Descriptor:
        """Add a small blob; returns its descriptor without a media type."""

    def put_manifest(self, tag: str, data: bytes, media_type: str) -> str:
        """Add a manifest under a tag or its own digest; returns its digest."""


class CopyTarget(Writable, Protocol):
    """A repository that images can be copied to."""

    def has_blob(self, digest: str) -> bool:
        """Return whether it has a blob."""

    def mount(self, digest: str, source: Reference) -> bool:
        """Mount a blob of another repository of the same registry; returns whether it worked."""

    def upload(self, descriptor: Descriptor, file: Path, *, progress: Progress = silent) -> None:
        """Add a file's content as a blob; the file may be gone afterwards."""
