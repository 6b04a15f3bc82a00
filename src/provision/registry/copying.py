"""Copies images with their signatures, byte for byte: manifests keep the digests that were signed.

Content that the target has is not sent again, so an interrupted copy can be continued. Signatures
are copied before the tag that hosts look for, so that no host sees an unsigned image.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from provision.errors import NotFoundError, ProvisionError
from provision.progress import Progress, Transfer, silent
from provision.registry.attached_signatures import put_signatures, signature_layers, signature_tag
from provision.registry.client import Client
from provision.registry.image_signature import LONGEST_PAYLOAD
from provision.registry.manifests import (
    LONGEST_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Content,
    CopyTarget,
    Descriptor,
    Index,
    Manifest,
    Repository,
    parse_manifest,
)
from provision.registry.names import Reference
from provision.registry.transport import TroubleError

# Bytes held in memory.
_PART = 16 << 20


@dataclass(frozen=True, slots=True)
class Uploader(Client):
    """A repository of a registry that images are copied to."""

    def has_blob(self, digest: str) -> bool:
        """Return whether a blob is there.

        Raises:
            ProvisionError: The registry refuses or can't be reached.
        """

        def ask() -> bool:
            try:
                with self._request("HEAD", f"blobs/{digest}"):
                    return True
            except NotFoundError:
                return False

        return self._tried(f"the blob {digest}", ask)

    def mount(self, digest: str, source: Reference) -> bool:
        """Mount a blob of another repository of the same registry, without sending it.

        Source: distribution-spec 1.1, "Mounting a blob from another repository".
        """
        if source.registry != self.reference.registry:
            return False
        query = urlencode({"mount": digest, "from": source.repository})
        # A registry that refuses to mount takes the blob itself.
        with (
            suppress(ProvisionError, TroubleError),
            self._request("POST", f"blobs/uploads/?{query}", body=b"") as response,
        ):
            return response.status_code == 201  # noqa: PLR2004 - "Created", as the source says
        return False

    def upload(self, descriptor: Descriptor, file: Path, *, progress: Progress = silent) -> None:
        """Upload a file as a blob, in parts.

        Raises:
            ProvisionError: The registry refuses or can't be reached.
        """
        what = f"an upload of {descriptor.digest[:19]}"

        def send() -> None:
            place = self._begin_upload()
            sent = 0
            with file.open("rb") as stream:
                while part := stream.read(_PART):
                    headers = {
                        "Content-Type": "application/octet-stream",
                        "Content-Range": f"{sent}-{sent + len(part) - 1}",
                    }
                    with self._request("PATCH", place, body=part, headers=headers) as response:
                        place = self._upload_place(response)
                    sent += len(part)
                    progress(Transfer(f"Pushing {descriptor.digest[:19]}", sent, descriptor.size))
            self._complete_upload(place, descriptor.digest, b"")

        self._tried(what, send)

    def at(self, reference: Reference) -> Uploader:
        """Return the same repository for another of its images."""
        return Uploader(self.transport, reference)


def uploader(client: Client) -> Uploader:
    """Return a client that images can be copied to."""
    return Uploader(client.transport, client.reference)


@dataclass(slots=True)
class ImageCopier:
    """Copies images from one repository to another, with their signatures.

    Attributes:
        source: The source; its images were verified before.
        target: The target.
        folder: For layers in transit; on the same file system as a target on disk.
        progress: Receives transfers.
        blobs: Number of blobs sent.
        size: Bytes sent.
        present: Number of blobs that the target already had.
    """

    source: Repository
    target: CopyTarget
    folder: Path
    progress: Progress = silent
    blobs: int = 0
    size: int = 0
    present: int = 0

    def copy(self, content: Content, tags: Sequence[str]) -> None:
        """Copy an image, or all images of an index.

        Args:
            content: Its manifest, or the index.
            tags: Its tags in the target.

        Raises:
            WrongContentError: A content is not what its digest says.
            UnreachableError: A registry kept failing.
            ProvisionError: A registry refuses.
            OSError: The disk is full.
        """
        name = f"{self.source.reference.name}@{content.digest}"
        found = parse_manifest(content.data, name)
        if isinstance(found, Index):
            for one in found.manifests:
                self._copy_manifest(self.source.manifest(one.digest))
        self._copy_manifest(content)
        for tag in tags:
            if not self._has(tag, content.digest):
                self.target.put_manifest(tag, content.data, _media_type(content, found))

    def _copy_manifest(self, content: Content) -> None:
        """Copy a manifest under its digest, with its blobs before it and its signatures."""
        found = parse_manifest(content.data, content.digest)
        if isinstance(found, Manifest):
            for blob in {one.digest: one for one in (found.config, *found.layers)}.values():
                self._copy_blob(blob)
        if not self._has(content.digest, content.digest):
            self.target.put_manifest(content.digest, content.data, _media_type(content, found))
        self._copy_signatures(content.digest)

    def _copy_signatures(self, digest: str) -> None:
        """Copy the signatures of an image; further ones in the target stay."""
        tag = signature_tag(digest)
        try:
            content = self.source.manifest(tag)
        except NotFoundError:
            return
        if self._has(tag, content.digest):
            return
        found = parse_manifest(content.data, tag)
        if isinstance(found, Index):
            return
        for blob in (found.config, *found.layers):
            if blob.size > max(LONGEST_PAYLOAD, LONGEST_MANIFEST):
                return
            self._copy_blob(blob)
        theirs = signature_layers(self.target, digest)
        ours = signature_layers(self.source, digest)
        more = [one for one in theirs if one["annotations"] not in [o["annotations"] for o in ours]]
        if more:
            put_signatures(self.target, digest, [*more, *ours])
        else:
            self.target.put_manifest(tag, content.data, OCI_MANIFEST)

    def _copy_blob(self, blob: Descriptor) -> None:
        if self.target.has_blob(blob.digest) or self.target.mount(
            blob.digest, self.source.reference
        ):
            self.present += 1
            return
        with tempfile.TemporaryDirectory(prefix=".blob-", dir=self.folder) as name:
            file = Path(name, "blob")
            self.source.download(blob, file, progress=self.progress)
            self.target.upload(blob, file, progress=self.progress)
        self.blobs += 1
        self.size += blob.size

    def _has(self, name: str, digest: str) -> bool:
        try:
            return self.target.manifest(name).digest == digest
        except NotFoundError:
            return False


def _media_type(content: Content, found: Manifest | Index) -> str:
    usual = OCI_INDEX if isinstance(found, Index) else OCI_MANIFEST
    return str(json.loads(content.data).get("mediaType") or usual)
