"""Signatures beside an archive, in ``FILE.sig``, for archives that can't contain them.

The signed payload is the same as in a registry: cosign's, with the image's digest and facts. For an
archive of `docker save`, the digest is that of its configuration, which engines call the image id.
A file may have several signatures; one by a trusted key suffices.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from provision.errors import NotFoundError, ProvisionError
from provision.files import write_atomic
from provision.progress import Progress, silent
from provision.registry.attached_signatures import signature_layers, signature_tag
from provision.registry.image_signature import (
    ANNOTATION,
    LONGEST_PAYLOAD,
    PAYLOAD,
    Facts,
    PublicKey,
    Signer,
    payload_of,
)
from provision.registry.manifests import OCI_CONFIG, OCI_MANIFEST, Content, Descriptor, Repository
from provision.registry.names import Reference
from provision.registry.transport import content_digest

_SUFFIX = ".sig"
_LONGEST_FILE = 4 << 20
_MOST = 64


@dataclass(frozen=True, slots=True)
class Detached:
    """A payload and its signature in base64."""

    payload: bytes
    signature: str


@dataclass(frozen=True, slots=True)
class WithSignatures:
    """A repository with additional signatures for its image.

    Attributes:
        inner: The repository.
        image: Digest of the signed image.
        layers: All signatures, as layers of a manifest.
        payloads: The signed payloads, by digest.
    """

    inner: Repository
    image: str
    layers: tuple[dict[str, Any], ...]
    payloads: dict[str, bytes]

    @property
    def reference(self) -> Reference:
        """The selected image."""
        return self.inner.reference

    def at(self, reference: Reference) -> Self:
        """Return the same repository for another image."""
        return replace(self, inner=self.inner.at(reference))

    def manifest(self, name: str) -> Content:
        """Return a manifest by tag or digest."""
        if name != signature_tag(self.image):
            return self.inner.manifest(name)
        config = {"mediaType": OCI_CONFIG, "digest": content_digest(b"{}"), "size": 2}
        document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config}
        data = json.dumps({**document, "layers": list(self.layers)}).encode()
        return Content(data, content_digest(data))

    def blob(self, descriptor: Descriptor, limit: int) -> bytes:
        """Return a small blob."""
        return self.payloads.get(descriptor.digest) or self.inner.blob(descriptor, limit)

    def download(
        self, descriptor: Descriptor, destination: Path, *, progress: Progress = silent
    ) -> None:
        """Write a blob to a new file."""
        self.inner.download(descriptor, destination, progress=progress)

    def tags(self) -> tuple[str, ...]:
        """Return the tags."""
        return self.inner.tags()


def signature_file(archive: Path) -> Path:
    """Return the path of an archive's signatures."""
    return archive.with_name(f"{archive.name}{_SUFFIX}")


def with_detached(repository: Repository, archive: Path, image: str) -> Repository:
    """Return a repository that includes the signatures beside its archive, if there are any.

    Args:
        repository: The images in the archive.
        archive: The archive.
        image: Digest of the selected image.

    Raises:
        ProvisionError: The file of signatures is not valid.
    """
    found = read_detached(signature_file(archive))
    if not found:
        return repository
    layers = signature_layers(repository, image)
    payloads = {content_digest(one.payload): one.payload for one in found}
    layers += [
        {
            "mediaType": PAYLOAD,
            "digest": content_digest(one.payload),
            "size": len(one.payload),
            "annotations": {ANNOTATION: one.signature},
        }
        for one in found
    ]
    return WithSignatures(repository, image, tuple(layers), payloads)


def read_detached(path: Path) -> tuple[Detached, ...]:
    """Return the signatures in a file; empty if it is missing.

    Raises:
        ProvisionError: It is not a file of signatures.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(_LONGEST_FILE + 1)
    except FileNotFoundError:
        return ()
    try:
        found = tuple(
            Detached(base64.b64decode(one["payload"], validate=True), str(one["signature"]))
            for one in json.loads(data)["signatures"]
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_signatures(path) from error
    is_large = len(data) > _LONGEST_FILE or len(found) > _MOST
    if is_large or any(len(one.payload) > LONGEST_PAYLOAD for one in found):
        raise _no_signatures(path)
    return found


def sign_archive(repository: Repository, archive: Path, facts: Facts, signer: Signer) -> Path:
    """Add a signature for the image of an archive; returns the file of signatures.

    Args:
        repository: The archive's image, named by its digest.
        archive: The archive.
        facts: The facts to sign.
        signer: Signs the payload.

    Raises:
        ProvisionError: The file of signatures is not valid, or is full.
        OSError: It can't be written.
    """
    path = signature_file(archive)
    before = read_detached(path)
    if len(before) >= _MOST:
        raise ProvisionError(
            f"'{path}' has {len(before)} signatures, and takes no more.",
            resolution="Remove it, and sign again with each key that is in use.",
        )
    digest = str(repository.reference.digest)
    payload = payload_of(digest, facts, archive.name)
    signed = Detached(payload, base64.b64encode(signer(payload)).decode())
    document = {
        "signatures": [
            {"payload": base64.b64encode(one.payload).decode(), "signature": one.signature}
            for one in (*before, signed)
        ]
    }
    write_atomic(path, json.dumps(document, indent=1) + "\n")
    return path


def fingerprint(key: PublicKey) -> str:
    """Return the sha256 of a public key (its SubjectPublicKeyInfo in DER), in hexadecimal digits.

    ``openssl pkey -pubin -in fleet.pub -outform DER | sha256sum`` prints the same.
    """
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - loads a library
        Encoding,
        PublicFormat,
    )

    data = key.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(data).hexdigest()


def _no_signatures(path: Path) -> ProvisionError:
    return ProvisionError(
        f"'{path}' is refused: it holds no signatures as 'provision sign' writes them.",
        resolution="Have the archive signed again by those whom you trust, and copy both files.",
    )


def require_file(path: Path) -> Path:
    """Return a path if it exists.

    Raises:
        NotFoundError: It does not exist.
    """
    if not path.exists():
        raise NotFoundError(f"There is no '{path}'.", resolution="Check whether the name is right.")
    return path
