"""Writes signatures of images into a registry, where cosign keeps them.

``registry.attached_signatures`` reads and verifies them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from provision.errors import ProvisionError
from provision.fetch import UnreachableError
from provision.registry.attached_signatures import (
    MOST_SIGNATURES,
    signature_layers,
    signature_tag,
    signatures_name,
)
from provision.registry.image_signature import (
    ANNOTATION,
    LONGEST_PAYLOAD,
    PAYLOAD,
    Facts,
    PublicKey,
    Signer,
    payload_of,
    verify_payload,
)
from provision.registry.manifests import (
    OCI_CONFIG,
    OCI_MANIFEST,
    Descriptor,
)
from provision.registry.private_key import FileSigner
from provision.registry.repository import Repository, Writable
from provision.registry.transport import content_digest


def sign(client: Writable, digest: str, facts: Facts | Mapping[str, str], signer: Signer) -> str:
    """Add a signature to an image.

    Args:
        client: The image's repository.
        digest: Of its manifest.
        facts: Its facts; for a catalogue, another mapping.
        signer: Signs.

    Returns:
        The name of its signatures.

    Raises:
        ProvisionError: The registry refuses, or the tag of signatures holds something else.
    """
    made = make_signature(client, digest, facts, signer)
    add_signature(client, digest, made, signer)
    return signatures_name(client, digest)


def make_signature(
    client: Writable, digest: str, facts: Facts | Mapping[str, str], signer: Signer
) -> dict[str, Any]:
    """Return a signature of an image, as ``add_signature`` takes it; its payload is uploaded.

    Arguments and errors as ``sign``.
    """
    name = f"{client.reference.registry}/{client.reference.repository}"
    payload = payload_of(digest, facts, name)
    stored = client.put_blob(payload)
    annotations = {ANNOTATION: base64.b64encode(signer(payload)).decode()}
    return {
        "mediaType": PAYLOAD,
        "digest": stored.digest,
        "size": stored.size,
        "annotations": annotations,
    }


def add_signature(client: Writable, digest: str, made: dict[str, Any], signer: Signer) -> bool:
    """Put a signature beside those that an image has; returns False if it is among them.

    Registries write no tag on condition: of two who sign an image at the same moment, the last one
    may write over the other's signature. So who has signed does this again a little later.

    Raises:
        As ``sign``.
    """
    layers = signature_layers(client, digest)
    if any(_is_same(one, made) for one in layers):
        return False
    if len(layers) >= MOST_SIGNATURES and isinstance(signer, FileSigner):
        # What this key signed before says the same, with an older serial.
        layers = [one for one in layers if not _is_own(client, one, digest, signer.public)]
    if len(layers) >= MOST_SIGNATURES:
        repository, _, tag = signatures_name(client, digest).rpartition(":")
        raise ProvisionError(
            f"'{repository}@{digest}' has {len(layers)} signatures; with one more, hosts would read"
            " none of them.",
            resolution=f"Remove the tag '{tag}' from the registry, and sign again with each key"
            " that is in use.",
        )
    put_signatures(client, digest, [*layers, made])
    return True


def _is_same(layer: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
    said = layer.get("annotations") or {}
    mine = made["annotations"][ANNOTATION]
    return bool(layer.get("digest") == made["digest"] and said.get(ANNOTATION) == mine)


def put_signatures(client: Writable, digest: str, layers: Sequence[dict[str, Any]]) -> None:
    """Write the signatures of an image, whose payloads are there already.

    Raises:
        ProvisionError: The registry refuses.
    """
    config = json.dumps(_signature_config([str(layer["digest"]) for layer in layers])).encode()
    client.put_blob(config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {
            "mediaType": OCI_CONFIG,
            "digest": content_digest(config),
            "size": len(config),
        },
        "layers": list(layers),
    }
    client.put_manifest(signature_tag(digest), json.dumps(manifest).encode(), OCI_MANIFEST)


def _is_own(client: Repository, layer: Mapping[str, Any], digest: str, key: PublicKey) -> bool:
    """Return whether a key made one of an image's signatures; False if that is unclear."""
    described = Descriptor.model_validate(layer)
    signature = described.annotations.get(ANNOTATION, "")
    try:
        payload = client.blob(described, LONGEST_PAYLOAD)
        verify_payload(payload, signature, digest=digest, keys=(key,))
    except UnreachableError:
        raise
    except ProvisionError:
        return False
    return True


def _signature_config(payloads: Sequence[str]) -> dict[str, Any]:
    return {
        "architecture": "",
        "os": "",
        "created": "0001-01-01T00:00:00Z",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": list(payloads)},
        "history": [{"created": "0001-01-01T00:00:00Z"} for _ in payloads],
    }
