"""OCI image layouts: images in a folder.

A layout keeps manifests unchanged, and so the digests that were signed; signatures lie under their
tags, as in a registry. The medium is not trusted: only regular files are read, and all contents are
compared with their digests.
Source: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Self

from provision.errors import NotFoundError, ProvisionError, WrongContentError
from provision.files import lock, write_atomic
from provision.progress import Transfer, report
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

INDEX = "index.json"
MARKER = "oci-layout"
MARKER_TEXT = '{"imageLayoutVersion":"1.0.0"}'
# https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
REF_NAME = "org.opencontainers.image.ref.name"
# How `cosign save` marks what it writes: image and signatures, without names.
_COSIGN_KIND = "kind"
_COSIGN_SIGNATURES = "dev.cosignproject.cosign/sigs"
_CHUNK = 1 << 20


def _open(folder: Path, path: str) -> IO[bytes]:
    """Open a regular file below a folder: neither it nor a folder on the way may be a link."""
    parts = PurePosixPath(path).parts
    above = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
            os.close(above)
            above = inner
        # Opening a FIFO would block.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(parts[-1], flags, dir_fd=above)
    except FileNotFoundError as error:
        raise refused(folder, f"it has no file '{path}'") from error
    except OSError as error:
        raise refused(folder, f"'{path}' in it can't be read ({error.strerror})") from error
    finally:
        os.close(above)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise refused(folder, f"'{path}' in it is no regular file")
    return os.fdopen(handle, "rb")


def _read_small(folder: Path, path: str) -> bytes:
    """Return the content of a file that is no longer than a manifest."""
    with _open(folder, path) as stream:
        data = stream.read(LONGEST_MANIFEST + 1)
    if len(data) > LONGEST_MANIFEST:
        raise refused(folder, f"'{path}' in it is larger than {LONGEST_MANIFEST} bytes")
    return data


def refused(name: Path, why: str) -> ProvisionError:
    """Return the error for content of a medium that an image can't have."""
    return ProvisionError(
        f"'{name}' is refused: {why}.",
        resolution="Don't use it. Have it made again by those whom you trust, and copied once"
        " more.",
    )


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The images of an OCI image layout: a ``Writable``; what is written is in a folder of ours."""

    folder: Path
    reference: Reference

    @property
    def names(self) -> Mapping[str, Descriptor]:
        """The entries of its index by tag; entries without a tag by digest."""
        return _names(self.folder)

    def name(self, name: str) -> str:
        """Return the name for skopeo of an image, given by its tag or digest."""
        if DIGEST.fullmatch(name):
            # skopeo finds what is in a folder by tags only.
            name = next(tag for tag, entry in self.names.items() if entry.digest == name)
        return f"oci:{self.folder}:{name}"

    def at(self, reference: Reference) -> Self:
        """Return the same layout for another of its images."""
        return replace(self, reference=reference)

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest."""
        digest = name
        if not DIGEST.fullmatch(name):
            entry = self.names.get(name)
            if entry is None:
                raise NotFoundError(
                    f"'{self.folder}' has no image '{name}'.",
                    resolution="Check the name: the folder's index.json lists the images.",
                )
            digest = entry.digest
        data = _read_small(self.folder, _blob(digest))
        self._compare(digest, content_digest(data))
        return Content(data, digest)

    def config(self, digest: str, manifest: Manifest) -> bytes:
        """Return the configuration of an image."""
        del digest
        return _read_small(self.folder, _blob(manifest.config.digest))

    def fetch(
        self, digest: str, manifest: Manifest, layers: Collection[Descriptor], folder: Path
    ) -> None:
        """As ``Repository.fetch``."""
        del digest, manifest
        (folder / BLOBS).mkdir(parents=True, exist_ok=True)
        for layer in layers:
            target = blob_path(folder, layer)
            if target.exists():
                continue
            sha256 = hashlib.sha256()
            try:
                with _open(self.folder, _blob(layer.digest)) as source, target.open("xb") as copied:
                    # The digest decides in the end; no more is written than the manifest says.
                    while chunk := source.read(min(_CHUNK, layer.size + 1 - copied.tell())):
                        copied.write(chunk)
                        sha256.update(chunk)
                        text = f"Reading {layer.digest[7:19]}"
                        report(Transfer(text, copied.tell(), layer.size))
                self._compare(layer.digest, f"sha256:{sha256.hexdigest()}")
            except BaseException:
                target.unlink(missing_ok=True)
                raise

    def tags(self) -> tuple[str, ...]:
        """Return the names in the index."""
        return tuple(self.names)

    def put_image(self, tag: str, manifest: bytes, blobs: Sequence[bytes]) -> str:
        """As ``Writable.put_image``."""
        for blob in (*blobs, manifest):
            digest = content_digest(blob)
            write_atomic(self.folder / _blob(digest), blob)
        self._set_tag(tag, digest, manifest)
        return digest

    def tag(self, digest: str, tag: str) -> None:
        """As ``Writable.tag``."""
        self._set_tag(tag, digest, self.manifest(digest).data)

    def _set_tag(self, tag: str, digest: str, manifest: bytes) -> None:
        index = self.folder / INDEX
        entry = {
            "mediaType": json.loads(manifest).get("mediaType") or OCI_MANIFEST,
            "digest": digest,
            "size": len(manifest),
            "annotations": {REF_NAME: tag},
        }
        with lock(self.folder / MARKER):
            kept = [
                one
                for one in json.loads(index.read_text())["manifests"]
                if one.get("annotations", {}).get(REF_NAME) != tag
            ]
            _write_index(index, [*kept, entry])

    def _compare(self, expected: str, got: str) -> None:
        if got != expected:
            raise WrongContentError(
                f"'{self.folder}' is damaged: what it has under {expected} is another content.",
                resolution="Copy it again, or have it made again by those whom you trust.",
                details=f"expected {expected}\ngot      {got}",
            )


def _blob(digest: str) -> str:
    return f"{BLOBS}/{digest.removeprefix('sha256:')}"


def _names(folder: Path) -> dict[str, Descriptor]:
    index = parse_manifest(_read_small(folder, INDEX), f"{folder}: {INDEX}")
    if not isinstance(index, Index):
        raise refused(folder, f"'{INDEX}' in it is no index")
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
            raise refused(folder, f"two images in it are called '{tag[:80]}'")
        found[tag] = one
    if len(signatures) == 1 and len(found) == 1:
        (image,) = found.values()
        found[f"{image.digest.replace(':', '-')}.sig"] = signatures[0]
    return found


def folder_layout(reference: Reference) -> ImageLayout:
    """Return the repository of a reference in a folder, of which nothing is trusted."""
    folder = Path(str(reference.layout))
    if not (folder / MARKER).is_file():
        raise NotFoundError(
            f"'{folder.parent}' has no images of {folder.name}.",
            resolution=f"See what is there: ls {folder.parent}. 'provision build {folder.name}"
            f" --push oci:{folder.parent} --sign' adds an image.",
        )
    return ImageLayout(folder, reference)


def writable_layout(folder: Path, reference: Reference) -> ImageLayout:
    """Return the layout in a folder of our own; made where it is missing."""
    (folder / BLOBS).mkdir(parents=True, exist_ok=True)
    if not (folder / MARKER).exists():
        write_atomic(folder / MARKER, MARKER_TEXT)
    if not (folder / INDEX).exists():
        _write_index(folder / INDEX, [])
    return ImageLayout(folder, reference)


def _write_index(path: Path, manifests: Sequence[object]) -> None:
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(manifests)}
    write_atomic(path, json.dumps(document, indent=1) + "\n")
