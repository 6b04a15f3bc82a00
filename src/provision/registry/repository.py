"""A repository of a registry, read and written by skopeo."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from provision.fetch import WrongContentError
from provision.progress import Progress, Transfer, silent
from provision.registry.image_layout import LayoutWriter
from provision.registry.manifests import (
    BLOBS,
    Content,
    Descriptor,
    Manifest,
    blob_path,
    content_digest,
)
from provision.registry.names import Reference
from provision.registry.skopeo import (
    Layout,
    Registry,
    copy,
    inspect,
    inspect_config,
    list_tags,
)

_TAG = "image"


@dataclass(frozen=True, slots=True)
class RegistryRepository:
    """A repository of a registry, by skopeo.

    Attributes:
        registry: How it is reached.
        reference: The selected image.
    """

    registry: Registry
    reference: Reference

    def at(self, reference: Reference) -> Self:
        """Return the same repository for another of its images."""
        return replace(self, reference=reference)

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest; errors as ``skopeo.inspect``."""
        data = inspect(self.registry, name)
        digest = content_digest(data)
        if name.startswith("sha256:") and name != digest:
            raise WrongContentError(
                f"'{self.reference.name}@{name}' does not match its digest: the registry serves"
                " different content.",
                resolution="Don't use it. The registry or a proxy before it is damaged or was"
                " altered; try a mirror of it, or push the image again.",
            )
        return Content(data, digest)

    def config(self, digest: str, manifest: Manifest) -> bytes:
        """Return the configuration of an image; errors as ``skopeo.inspect``."""
        del manifest
        return inspect_config(self.registry, digest)

    def fetch(
        self,
        digest: str,
        manifest: Manifest,
        layers: Collection[Descriptor],
        folder: Path,
        *,
        progress: Progress = silent,
    ) -> None:
        """As ``Repository.fetch``; errors as ``skopeo.copy``."""
        (folder / BLOBS).mkdir(exist_ok=True)
        # skopeo does not copy a blob that is there: this is how it leaves out layers.
        left_out = [
            path
            for layer in manifest.layers
            if layer not in layers and not (path := blob_path(folder, layer)).exists()
        ]
        for path in left_out:
            path.touch()
        size = sum(layer.size for layer in layers)
        text = f"Pulling {self.reference}"
        try:
            copy(
                self.registry,
                digest,
                Layout(folder / "layout", blobs=folder),
                _TAG,
                size=size,
                on_bytes=lambda done: progress(Transfer(text, min(done, size), size)),
            )
        finally:
            for path in left_out:
                path.unlink()

    def tags(self) -> tuple[str, ...]:
        """Return the tags; errors as ``skopeo.inspect``."""
        return list_tags(self.registry)

    def put_image(self, tag: str, manifest: bytes, blobs: Sequence[bytes]) -> str:
        """As ``Writable.put_image``; errors as ``skopeo.copy``."""
        with tempfile.TemporaryDirectory(prefix="provision-push-") as name:
            layout = LayoutWriter(Path(name), self.reference)
            digest = layout.put_image(_TAG, manifest, blobs)
            copy(Layout(layout.folder), _TAG, self.registry, tag)
        return digest

    def tag(self, digest: str, tag: str) -> None:
        """As ``Writable.tag``; errors as ``skopeo.copy``."""
        copy(self.registry, digest, self.registry, tag)
