"""Manifests and configurations of images, as far as artifacts use them.

Sources: https://github.com/opencontainers/image-spec/blob/v1.1.0/manifest.md (also image-index.md
and config.md), https://distribution.github.io/distribution/spec/manifest-v2-2/.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from provision.documents import Foreign, refusing
from provision.errors import NotFoundError, ProvisionError
from provision.pin import MACHINE_OF_GO, ImageDigest

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)
INDEXES = (OCI_INDEX, DOCKER_LIST)
_GZIP = (
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
)
_PLAIN = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
)
# Other tools write these: skopeo with --dest-compress-format zstd, BuildKit with compression=zstd.
_ZSTD = (
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
)
# Registries refuse larger manifests: distribution-spec 1.1, "Pushing manifests".
LONGEST_MANIFEST = 4 << 20
LARGEST_LAYER = 4 << 30
# Where a layout has its blobs: image-layout.md.
BLOBS = "blobs/sha256"
_MOST_LAYERS = 128
_MOST_MANIFESTS = 1024
_NOT_OURS = "This is no artifact image that provision built: don't use it."


@dataclass(frozen=True, slots=True)
class Content:
    """A manifest: its bytes, and the digest of these bytes."""

    data: bytes
    digest: str


class Platform(Foreign):
    """The platform of an image in an index."""

    architecture: str = ""
    os: str = ""


class Descriptor(Foreign):
    """A reference to content by its digest."""

    media_type: str = Field(alias="mediaType", max_length=255)
    digest: ImageDigest
    size: int = Field(ge=0, le=LARGEST_LAYER)
    annotations: Mapping[str, str] = Field(default_factory=dict)
    platform: Platform = Platform()

    @property
    def is_gzip(self) -> bool:
        """Whether it is a layer that is compressed with gzip."""
        return self.media_type in _GZIP

    @property
    def is_zstd(self) -> bool:
        """Whether it is a layer that is compressed with zstd."""
        return self.media_type in _ZSTD


class Manifest(Foreign):
    """An image, or the signatures of one."""

    schema_version: Literal[2] = Field(alias="schemaVersion")
    config: Descriptor
    layers: tuple[Descriptor, ...] = Field(max_length=_MOST_LAYERS)

    @property
    def size(self) -> int:
        """Bytes of all layers, as they are transferred."""
        return sum(layer.size for layer in self.layers)


class Index(Foreign):
    """Images of one name for several architectures."""

    schema_version: Literal[2] = Field(alias="schemaVersion")
    manifests: tuple[Descriptor, ...] = Field(max_length=_MOST_MANIFESTS)

    def of(self, architecture: str, name: str) -> Descriptor:
        """Return the image for an architecture.

        Args:
            architecture: As ``uname -m`` prints it.
        """
        for one in self.manifests:
            known = MACHINE_OF_GO.get(one.platform.architecture)
            if known == architecture and one.platform.os in {"linux", ""}:
                return one
        raise NotFoundError(
            f"'{name}' has no image for {architecture}.",
            resolution="Build and push one on such a machine:"
            f" provision build DRIVER --push {name}",
        )


class _RootFs(Foreign):
    diff_ids: tuple[ImageDigest, ...] = Field(max_length=_MOST_LAYERS)


class _ConfigBody(Foreign):
    labels: Mapping[str, str] | None = Field(default=None, alias="Labels")


class _Config(Foreign):
    rootfs: _RootFs
    config: _ConfigBody | None = None


def parse_manifest(data: bytes, name: str) -> Manifest | Index:
    """Parse a manifest whose digest was compared before."""
    document = _object(data, name)
    kind = document.get("mediaType")
    has_layers, has_manifests = "layers" in document, "manifests" in document
    # https://github.com/opencontainers/image-spec/security/advisories/GHSA-77vh-xpmg-72qh
    if has_layers and has_manifests:
        raise _refused(name, "has both layers and manifests, and can be read in two ways")
    if kind is not None and kind not in (INDEXES if has_manifests else MANIFESTS):
        raise _refused(name, f"is a {str(kind)[:80]}, and no image")
    with refusing(f"'{name}' is refused: it is no manifest of an image.", resolution=_NOT_OURS):
        return (Index if has_manifests else Manifest).model_validate_json(data)


def check_image(manifest: Manifest, name: str) -> None:
    """Check that all layers of an image can be unpacked."""
    if manifest.config.media_type not in {OCI_CONFIG, DOCKER_CONFIG}:
        raise _refused(name, f"holds a {manifest.config.media_type}, and no image")
    if not manifest.layers:
        raise _refused(name, "has no layers")
    for layer in manifest.layers:
        if layer.media_type not in (*_GZIP, *_ZSTD, *_PLAIN):
            raise _refused(name, f"has a layer of the kind {layer.media_type}")
    if manifest.config.size > LONGEST_MANIFEST:
        raise _refused(name, "has a configuration that is too large")
    if manifest.size > LARGEST_LAYER:
        raise _refused(name, f"is larger than {LARGEST_LAYER} bytes")


def parse_labels(data: bytes, manifest: Manifest, name: str) -> Mapping[str, str]:
    """Return the labels in an image's configuration."""
    with refusing(f"'{name}' is refused: its configuration is not valid.", resolution=_NOT_OURS):
        config = _Config.model_validate_json(data)
    if len(config.rootfs.diff_ids) != len(manifest.layers):
        raise _refused(name, "has another number of layers than its configuration says")
    return (config.config.labels if config.config else None) or {}


def _object(data: bytes, name: str) -> Mapping[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _refused(name, "is not JSON") from error
    if not isinstance(document, Mapping):
        raise _refused(name, "is no JSON object")
    return document


def _refused(name: str, why: str) -> ProvisionError:
    return ProvisionError(f"'{name}' is refused: it {why}.", resolution=_NOT_OURS)


def content_digest(data: bytes) -> str:
    """Return the digest of content, as registries write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob_path(folder: Path, descriptor: Descriptor) -> Path:
    """Return the file of a layer that was fetched into a folder."""
    return folder / BLOBS / descriptor.digest.removeprefix("sha256:")
