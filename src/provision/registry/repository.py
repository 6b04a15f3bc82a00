"""What every place of images can do, a registry's repository or files on a medium."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self

from provision.progress import Progress, silent
from provision.registry.manifests import Content, Descriptor
from provision.registry.names import Reference


class Repository(Protocol):
    """Where images are read from: a repository of a registry, or files."""

    @property
    def reference(self) -> Reference:
        """The image that is meant."""

    def at(self, reference: Reference) -> Self:
        """Return the same repository for another of its images."""

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest."""

    def blob(self, descriptor: Descriptor, limit: int) -> bytes:
        """Return a small blob."""

    def download(
        self, descriptor: Descriptor, destination: Path, *, progress: Progress = silent
    ) -> None:
        """Write a blob to a new file; it is there whole and right, or not at all."""

    def tags(self) -> tuple[str, ...]:
        """Return the names of what is there."""


class Writable(Repository, Protocol):
    """Where signatures can be put."""

    def put_blob(self, data: bytes) -> Descriptor:
        """Have a small blob; returns its descriptor without a media type."""

    def put_manifest(self, tag: str, data: bytes, media_type: str) -> str:
        """Have a manifest under a tag or its own digest; returns its digest."""


class Target(Writable, Protocol):
    """Where images are copied to."""

    def has_blob(self, digest: str) -> bool:
        """Return whether a blob is there."""

    def mount(self, digest: str, source: Reference) -> bool:
        """Have a blob of another repository of the same registry; returns whether that worked."""

    def upload(self, descriptor: Descriptor, file: Path, *, progress: Progress = silent) -> None:
        """Have the content of a file as a blob; the file may be gone afterwards."""
