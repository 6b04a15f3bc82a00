"""A repository in memory, which can have what no program pushes; skopeo's is in test_skopeo.py."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kit.media import image_of
from provision.errors import NotFoundError
from provision.pin import Pin
from provision.registry import (
    BLOBS,
    Content,
    Descriptor,
    ImageManifest,
    Reference,
    blob_path,
    parse_reference,
)
from provision.registry.find import facts_of
from provision.registry.repositories import ImageLayout
from provision.registry.signatures import PublicKey, SignedFacts, of_private_key, sign

HOST = "registry.example"
REPOSITORY = "drivers/demo"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class MemoryRegistry:
    """What one repository of a registry has.

    Attributes:
        blobs: Contents by digest.
        manifests: Contents by tag or digest.
        asked: What it was asked for, in order: ``manifest NAME``, ``config``, ``fetch``, ``tags``,
            ``put NAME``.
        hooks: Called before each answer with the host and what is asked; they may raise.
        after: Called with each tag that was written.
        hosts: The hosts at which it is.
    """

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.hooks: list[Callable[[str, str], object]] = []
        self.after: list[Callable[[str], object]] = []
        self.hosts = {HOST}

    # What a test puts there.

    def have_blob(self, data: bytes) -> str:
        digest = digest_of(data)
        self.blobs[digest] = data
        return digest

    def have_manifest(self, document: Mapping[str, Any], tag: str = "1") -> str:
        data = json.dumps(document).encode()
        self.manifests[tag] = self.manifests[digest_of(data)] = data
        return digest_of(data)

    def have_image(
        self,
        pin: Pin,
        layers: Iterable[bytes],
        tag: str = "1",
        *,
        labels: Mapping[str, str] | None = None,
        **changes: object,
    ) -> str:
        """Have an image of tar files, and return its digest; ``changes`` are of its manifest."""
        made = image_of(pin, layers, labels=labels, **changes)
        return self.client().put_image(tag, made.manifest, made.blobs)

    # How a test looks at it.

    def client(self, reference: str = f"{HOST}/{REPOSITORY}:1") -> MemoryRepository:
        return MemoryRepository(self, parse_reference(reference))

    def sign(
        self,
        digest: str,
        facts: SignedFacts,
        key: ec.EllipticCurvePrivateKey,
    ) -> None:
        sign(self.client(), digest, facts, lambda data: key.sign(data, ECDSA))


@dataclass(frozen=True, slots=True)
class MemoryRepository:
    """The repository, as those that ``provision.registry`` reads and writes."""

    stored: MemoryRegistry
    reference: Reference

    def options(self, _side: str) -> AbstractContextManager[list[str]]:
        """Return no options: skopeo does not reach it."""
        return nullcontext([])

    def name(self, name: str) -> str:
        """Return a name that skopeo does not know."""
        return f"memory:{name}"

    def at(self, reference: Reference) -> MemoryRepository:
        return replace(self, reference=reference)

    def manifest(self, name: str) -> Content:
        self._ask(f"manifest {name}")
        data = self.stored.manifests.get(name)
        if data is None:
            raise NotFoundError(f"no {name}")
        return Content(data, digest_of(data))

    def config(self, digest: str, manifest: ImageManifest) -> bytes:
        self._ask("config")
        del digest
        return self.stored.blobs[manifest.config.digest]

    def fetch(
        self,
        digest: str,
        manifest: ImageManifest,
        layers: Collection[Descriptor],
        folder: Path,
    ) -> None:
        del digest, manifest
        (folder / BLOBS).mkdir(parents=True, exist_ok=True)
        for layer in layers:
            self._ask(f"fetch {layer.digest}")
            blob_path(folder, layer).write_bytes(self.stored.blobs[layer.digest])

    def tags(self) -> tuple[str, ...]:
        self._ask("tags")
        if not self.stored.manifests:
            raise NotFoundError("there is no such repository")
        return tuple(name for name in self.stored.manifests if ":" not in name)

    def put_image(self, tag: str, manifest: bytes, blobs: Sequence[bytes]) -> str:
        for blob in blobs:
            self.stored.have_blob(blob)
        self._put(tag, manifest)
        return digest_of(manifest)

    def tag(self, digest: str, tag: str) -> None:
        self._put(tag, self.stored.manifests[digest])

    def _put(self, tag: str, manifest: bytes) -> None:
        self._ask(f"put {tag}")
        self.stored.manifests[tag] = self.stored.manifests[digest_of(manifest)] = manifest
        for hook in list(self.stored.after):
            hook(tag)

    def _ask(self, what: str) -> None:
        for hook in self.stored.hooks:
            hook(self.reference.registry, what)
        if self.reference.registry not in self.stored.hosts:
            raise NotFoundError("there is no such registry")
        self.stored.asked.append(what)


def copy_to_layout(registry: MemoryRegistry, writer: ImageLayout) -> None:
    """Copy all images, as skopeo does."""
    blobs = list(registry.blobs.values())
    for tag, data in registry.manifests.items():
        if ":" not in tag:
            writer.put_image(tag, data, blobs)


ECDSA = ec.ECDSA(SHA256())


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public(key: ec.EllipticCurvePrivateKey) -> PublicKey:
    return of_private_key("fleet.pub", key)


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def layer_of(folder: Path, has: Callable[[str], bool] = lambda _name: True) -> bytes:
    """Return a folder's content, or some of it, as the layer of an image, at ``/opt``."""

    def taken(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return member if member.isdir() or has(member.name) else None

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname="opt", filter=taken)
    return buffer.getvalue()


def wanted_of(pin: Pin) -> dict[str, str]:
    """Return what a host asks for, which wants the artifact of a Pin."""
    facts = facts_of(pin, 0)
    names = ("driver", "version", "flavour", "distro", "kernel", "architecture")
    return {name: getattr(facts, name) for name in names}
