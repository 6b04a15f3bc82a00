"""Signatures of images in a registry, where cosign keeps them: read, verified and written.

An image's signatures are the layers of another image, whose tag is derived from the first digest.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.errors import NotFoundError, ProvisionError
from provision.fetch import UnreachableError
from provision.registry.image_signature import (
    ANNOTATION,
    LONGEST_PAYLOAD,
    PAYLOAD,
    Facts,
    PublicKey,
    Signer,
    UntrustedError,
    Verified,
    differences,
    payload_of,
    verify_payload,
)
from provision.registry.manifests import (
    OCI_CONFIG,
    OCI_MANIFEST,
    Descriptor,
    Index,
    Repository,
    Writable,
    parse_manifest,
)
from provision.registry.private_key import FileSigner
from provision.registry.transport import content_digest

MOST_SIGNATURES = 64
_DO_NOT_USE = (
    "Don't use it. Have it signed by those who build your artifacts ('provision sign'), or build it"
    " here: provision build."
)


def verify_signature(
    client: Repository,
    digest: str,
    keys: Sequence[PublicKey],
    required: Mapping[str, str],
    *,
    oldest: int = 0,
) -> Verified:
    """Return the newest good signature of an image.

    Args:
        client: The repository of image and signatures.
        digest: Digest of the image's manifest.
        keys: The trusted keys.
        required: The required facts, by names of ``Facts``.
        oldest: The lowest accepted serial.

    Raises:
        UntrustedError: No signature counts; says why for each.
    """
    name = f"{client.reference.name}@{digest}"
    complaints: list[str] = []
    good: list[Verified] = []
    for verified in _verified(client, digest, keys, complaints):
        wrong = _wrong(verified, required, oldest)
        complaints += wrong
        if not wrong:
            good.append(verified)
    if not good:
        raise UntrustedError(
            f"'{name}' is refused: no signature of it counts here.",
            resolution=_DO_NOT_USE,
            details="\n".join(dict.fromkeys(complaints)) or "it has no signature",
        )
    return max(good, key=lambda one: one.facts.serial if one.facts else 0)


def _wrong(verified: Verified, required: Mapping[str, str], oldest: int) -> list[str]:
    facts = verified.facts
    if facts is None:
        text = "does not say which driver, version, flavour, distro, kernel, architecture, Pin and"
        return [f"the signature by {verified.key} {text} serial it is for"]
    wrong = list(differences(facts, required))
    if facts.serial < oldest:
        wrong.append(
            f"the signature by {verified.key} is of {facts.serial} (Unix seconds), and not_before"
            f" asks for {oldest} or later"
        )
    return wrong


def _verified(
    client: Repository, digest: str, keys: Sequence[PublicKey], complaints: list[str]
) -> Iterator[Verified]:
    """Yield the signatures of an image by trusted keys; add a complaint for each other one."""
    for payload, signature in _signatures(client, digest, complaints):
        try:
            verified = verify_payload(payload, signature, digest=digest, keys=keys)
        except UntrustedError as error:
            complaints.append(error.message)
        else:
            yield verified


def _signatures(client: Repository, digest: str, complaints: list[str]) -> list[tuple[bytes, str]]:
    """Return the payloads of an image's signatures, each with its signature in base64."""
    name = f"{client.reference.name}@{digest}"
    try:
        content = client.manifest(signature_tag(digest))
    except NotFoundError:
        complaints.append("it has no signature")
        return []
    manifest = parse_manifest(content.data, f"the signatures of {name}")
    if isinstance(manifest, Index) or len(manifest.layers) > MOST_SIGNATURES:
        complaints.append(f"there are no signatures, or more than {MOST_SIGNATURES}")
        return []
    return [
        (client.blob(layer, LONGEST_PAYLOAD), layer.annotations[ANNOTATION])
        for layer in manifest.layers
        if layer.media_type == PAYLOAD and ANNOTATION in layer.annotations
    ]


def signature_tag(digest: str) -> str:
    """Return the tag of an image's signatures."""
    return f"{digest.replace(':', '-')}.sig"


def signatures_name(client: Repository, digest: str) -> str:
    """Return the name of an image's signatures."""
    return f"{client.reference.name}:{signature_tag(digest)}"


def signature_layers(client: Repository, digest: str) -> list[dict[str, Any]]:
    """Return the signatures of an image as layers of a manifest; empty if it has none.

    Raises:
        ProvisionError: The tag of signatures holds something else.
    """
    name = signatures_name(client, digest)
    try:
        before = parse_manifest(client.manifest(signature_tag(digest)).data, name)
    except NotFoundError:
        return []
    if isinstance(before, Index):
        return []
    layers = [layer.model_dump(mode="json", by_alias=True) for layer in before.layers]
    for layer in layers:
        layer.pop("platform", None)
        layer.pop("urls", None)
    return layers


def sign(client: Writable, digest: str, facts: Facts, signer: Signer) -> str:
    """Add a signature to an image.

    Args:
        client: The image's repository.
        digest: Digest of its manifest.
        facts: Its facts.
        signer: Signs the payload.

    Returns:
        The name of its signatures.

    Raises:
        ProvisionError: The registry refuses, or the tag of signatures holds something else.
    """
    made = make_signature(client, digest, facts, signer)
    add_signature(client, digest, made, signer)
    return signatures_name(client, digest)


def make_signature(client: Writable, digest: str, facts: Facts, signer: Signer) -> dict[str, Any]:
    """Upload the payload of an image's signature; return the signature for ``add_signature``.

    Arguments and errors as ``sign``.
    """
    name = client.reference.name
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
    """Add a signature to those of an image; return False if it is among them.

    A registry can't write a tag conditionally: of two signers at the same moment, the second may
    overwrite the signature of the first. So each signer calls this again a little later.

    Raises:
        As ``sign``.
    """
    layers = signature_layers(client, digest)
    if any(_is_same(one, made) for one in layers):
        return False
    if len(layers) >= MOST_SIGNATURES and isinstance(signer, FileSigner):
        # Earlier signatures by this key have the same facts, with an older serial.
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
    """Write the signatures of an image; their payloads must be in the registry.

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
