"""The image of an archive of `docker save`, which has no manifest.

Its image is identified by the digest of its configuration, which names every layer; signatures of
that digest lie beside the archive (``registry.detached``). Source:
https://github.com/moby/docker-image-spec/blob/v1.3.1/spec.md (combined image JSON).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from provision.errors import NotFoundError
from provision.progress import Progress, silent
from provision.registry.manifests import (
    DOCKER_CONFIG,
    LONGEST_MANIFEST,
    OCI_MANIFEST,
    Content,
    Descriptor,
    Manifest,
    parse_config,
    parse_manifest,
)
from provision.registry.names import DIGEST, Reference
from provision.registry.storage import Files, compare_digest, copy_blob, read_small, refused
from provision.registry.transport import content_digest

_DOCKER_INDEX = "manifest.json"
_DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
_SIGNATURE_TAG = re.compile(r"sha256-[0-9a-f]{64}\.sig")


@dataclass(frozen=True, slots=True)
class DockerArchive:
    """The one image of an archive of `docker save`.

    Attributes:
        files: The archive.
        reference: The image.
        config: Digest of its configuration, which identifies it.
        layers: Paths of layers, by digest.
        content: A manifest made for it; the archive has none.
        config_path: Path of its configuration.
    """

    files: Files
    reference: Reference
    config: str
    layers: Mapping[str, str]
    content: Content
    config_path: str

    def at(self, reference: Reference) -> Self:
        """Return the same archive for another name of its image."""
        return replace(self, reference=reference)

    def manifest(self, name: str) -> Content:
        """Return the only manifest.

        Raises:
            NotFoundError: The name is another one, such as that of signatures.
        """
        is_other = DIGEST.fullmatch(name) and name != self.config
        if is_other or _SIGNATURE_TAG.fullmatch(name):
            raise NotFoundError(
                f"'{self.files.name}' has no '{name}'.",
                resolution="Name the image that the archive holds.",
            )
        return self.content

    def blob(self, descriptor: Descriptor, limit: int) -> bytes:
        """Return the configuration.

        Raises:
            WrongContentError: It has another digest.
            ProvisionError: It is too large, or the descriptor is of another blob.
        """
        data = read_small(self.files, self.config_path, limit)
        compare_digest(self.files.name, descriptor.digest, content_digest(data))
        return data

    def download(
        self, descriptor: Descriptor, destination: Path, *, progress: Progress = silent
    ) -> None:
        """Write a layer to a new file.

        Raises:
            WrongContentError: Its digest differs from the configuration's.
            ProvisionError: The archive has no such layer.
            OSError: The disk is full.
        """
        path = self.layers.get(descriptor.digest)
        if path is None:
            raise refused(self.files.name, f"it has no layer {descriptor.digest}")
        copy_blob(self.files, path, descriptor, destination, progress)

    def tags(self) -> tuple[str, ...]:
        """Return the image's name."""
        return (self.config,)


def open_docker_archive(files: Files, reference: Reference) -> DockerArchive:
    """Return the image of an archive.

    Raises:
        ProvisionError: It is no such archive, or holds several images.
    """
    try:
        data = read_small(files, _DOCKER_INDEX, LONGEST_MANIFEST)
    except NotFoundError as error:
        raise refused(
            files.name, f"it has neither 'oci-layout' nor '{_DOCKER_INDEX}', and so no image"
        ) from error
    config_path, paths = _docker_entry(files, data)
    config = _read_named(files, config_path)
    digest = content_digest(config)
    described = [
        {"mediaType": _DOCKER_LAYER, "digest": f"sha256:{'0' * 64}", "size": _size(files, path)}
        for path in paths
    ]
    draft = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": DOCKER_CONFIG, "digest": digest, "size": len(config)},
        "layers": described,
    }
    manifest = parse_manifest(json.dumps(draft).encode(), files.name)
    if not isinstance(manifest, Manifest):
        raise refused(files.name, f"'{_DOCKER_INDEX}' in it is not valid")
    diff_ids = parse_config(config, manifest, files.name).diff_ids
    for layer, diff_id in zip(described, diff_ids, strict=True):
        layer["digest"] = diff_id
    content = Content(json.dumps(draft).encode(), digest)
    layers = dict(zip(diff_ids, paths, strict=True))
    return DockerArchive(files, reference, digest, layers, content, config_path)


def _docker_entry(files: Files, data: bytes) -> tuple[str, list[str]]:
    """Return the paths of the configuration and the layers of the archive's image."""
    wrong = refused(files.name, f"'{_DOCKER_INDEX}' in it is not valid")
    try:
        document: Any = json.loads(data)
        entries = list(document)
        if len(entries) != 1:
            raise refused(files.name, f"it holds {len(entries)} images, and not one")
        config, layers = entries[0]["Config"], entries[0]["Layers"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise wrong from error
    if not isinstance(layers, list) or not all(isinstance(one, str) for one in [config, *layers]):
        raise wrong
    return config, layers


def _read_named(files: Files, path: str) -> bytes:
    try:
        return read_small(files, path, LONGEST_MANIFEST)
    except NotFoundError as error:
        raise refused(files.name, f"it names '{path[:80]}', which is not in it") from error


def _size(files: Files, path: str) -> int:
    try:
        return files.size(path)
    except NotFoundError as error:
        raise refused(files.name, f"it names '{path[:80]}', which is not in it") from error
