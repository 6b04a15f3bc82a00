"""Images outside of registries: OCI image layouts, and archives of `docker save`.

Both implement ``Repository``, so that the code that examines, verifies and unpacks images need not
distinguish them. An OCI image layout keeps manifests unchanged, and so the digests that were
signed; it has signatures under their tags, as a registry does. An archive of `docker save` has no
manifest: its image is identified by the digest of its configuration, which names every layer;
signatures of that digest lie beside the archive (``registry.detached``).

Sources: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md,
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
from provision.fetch import WrongContentError
from provision.progress import Progress, Transfer, silent
from provision.registry.layers import Hashing
from provision.registry.manifests import (
    DOCKER_CONFIG,
    LONGEST_MANIFEST,
    OCI_MANIFEST,
    Content,
    Descriptor,
    Index,
    Manifest,
    parse_config,
    parse_manifest,
)
from provision.registry.names import Reference
from provision.registry.storage import Files, read_small, refused
from provision.registry.transport import content_digest

INDEX = "index.json"
MARKER = "oci-layout"
MARKER_TEXT = '{"imageLayoutVersion":"1.0.0"}'
# https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
REF_NAME = "org.opencontainers.image.ref.name"
# How `cosign save` marks what it writes: image and signatures, without names.
_COSIGN_KIND = "kind"
_COSIGN_SIGNATURES = "dev.cosignproject.cosign/sigs"
_DOCKER_INDEX = "manifest.json"
_DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SIGNATURE_TAG = re.compile(r"sha256-[0-9a-f]{64}\.sig")
_LONGEST_MARKER = 4096
_CHUNK = 1 << 20


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
        if not _DIGEST.fullmatch(name):
            if name not in self.names:
                raise NotFoundError(f"'{self.files.name}' has no image '{name}'.")
            digest = self.names[name].digest
        data = read_small(self.files, self._path(digest), LONGEST_MANIFEST)
        _compare(self.files.name, digest, content_digest(data))
        return Content(data, digest)

    def blob(self, descriptor: Descriptor, limit: int) -> bytes:
        """Return a small blob; errors as ``manifest``."""
        data = read_small(self.files, self._path(descriptor.digest), min(limit, descriptor.size))
        _compare(self.files.name, descriptor.digest, content_digest(data))
        return data

    def download(
        self, descriptor: Descriptor, destination: Path, *, progress: Progress = silent
    ) -> None:
        """Write a blob to a new file; errors as ``manifest``, and OSError: the disk is full."""
        path = self._path(descriptor.digest)
        _copy(self.files, path, descriptor, destination, progress)

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
        is_other = _DIGEST.fullmatch(name) and name != self.config
        if is_other or _SIGNATURE_TAG.fullmatch(name):
            raise NotFoundError(f"'{self.files.name}' has no '{name}'.")
        return self.content

    def blob(self, descriptor: Descriptor, limit: int) -> bytes:
        """Return the configuration.

        Raises:
            WrongContentError: It has another digest.
            ProvisionError: It is too large, or the descriptor is of another blob.
        """
        data = read_small(self.files, self.config_path, limit)
        _compare(self.files.name, descriptor.digest, content_digest(data))
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
        _copy(self.files, path, descriptor, destination, progress)

    def tags(self) -> tuple[str, ...]:
        """Return the image's name."""
        return (self.config,)


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
        return _docker_archive(files, reference)
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


def _docker_archive(files: Files, reference: Reference) -> DockerArchive:
    try:
        data = read_small(files, _DOCKER_INDEX, LONGEST_MANIFEST)
    except NotFoundError as error:
        raise refused(
            files.name, f"it has neither '{MARKER}' nor '{_DOCKER_INDEX}', and so no image"
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


def _copy(
    files: Files, path: str, descriptor: Descriptor, destination: Path, progress: Progress
) -> None:
    if files.size(path) != descriptor.size:
        raise WrongContentError(
            f"'{files.name}' is damaged: '{path}' in it has another size than is said of it."
        )
    try:
        with (
            files.open(path) as source,
            destination.open("xb") as target,
            Hashing() as hashing,
        ):
            while chunk := source.read(_CHUNK):
                target.write(chunk)
                hashing.update(chunk)
                progress(Transfer(f"Reading {path[-71:-45]}", target.tell(), descriptor.size))
            digest = hashing.digest()
        _compare(files.name, descriptor.digest, digest)
    except BaseException:
        destination.unlink(missing_ok=True)
        raise


def _compare(name: str, expected: str, got: str) -> None:
    if got != expected:
        raise WrongContentError(
            f"'{name}' is damaged: what it has under {expected} is another content.",
            resolution="Copy it again, or have it made again by those whom you trust.",
            details=f"expected {expected}\ngot      {got}",
        )
