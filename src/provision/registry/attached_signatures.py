"""Signatures of images in a registry, where cosign keeps them: read, verified and written.

An image's signatures are the layers of another image, whose tag is derived from the first digest.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.errors import NotFoundError, ProvisionError
from provision.registry.image_signature import (
    ANNOTATION,
    LONGEST_PAYLOAD,
    PAYLOAD,
    Facts,
    PublicKey,
    Signer,
    UntrustedError,
    VerifiedSignature,
    differences,
    payload_of,
    verify_payload,
)
from provision.registry.manifests import (
    OCI_CONFIG,
    OCI_MANIFEST,
    Descriptor,
    Index,
    Manifest,
    Repository,
    Writable,
    blob_path,
    content_digest,
    parse_manifest,
)
from provision.registry.private_key import FileSigner

MOST_SIGNATURES = 64
_DO_NOT_USE = (
    "Don't use it. Have it signed by those who build your artifacts ('provision registry sign'),"
    " or build it"
    " here: provision build."
)


def verify_signature(
    client: Repository,
    digest: str,
    keys: Sequence[PublicKey],
    required: Mapping[str, str],
    *,
    oldest: int = 0,
) -> VerifiedSignature:
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
    good: list[VerifiedSignature] = []
    for verified in _verified(client, digest, keys, complaints):
        wrong = _wrong(verified, required, oldest)
        complaints += wrong
        if not wrong:
            good.append(verified)
    if not good:
        raise UntrustedError(
            f"'{name}' is refused: it has no signature from a trusted key.",
            resolution=_DO_NOT_USE,
            details="\n".join(dict.fromkeys(complaints)) or "it has no signature",
        )
    return max(good, key=lambda one: one.facts.serial if one.facts else 0)


def _wrong(verified: VerifiedSignature, required: Mapping[str, str], oldest: int) -> list[str]:
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
) -> Iterator[VerifiedSignature]:
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
    layers = [
        layer
        for layer in manifest.layers
        if layer.media_type == PAYLOAD and ANNOTATION in layer.annotations
    ]
    payloads = _payloads(client, content.digest, manifest, layers)
    return [(payloads[one.digest], one.annotations[ANNOTATION]) for one in layers]


def _payloads(
    client: Repository, digest: str, manifest: Manifest, layers: Sequence[Descriptor]
) -> dict[str, bytes]:
    """Return the payloads of signatures by their digests.

    Raises:
        ProvisionError: One is larger than a payload is.
    """
    if any(layer.size > LONGEST_PAYLOAD for layer in layers):
        raise ProvisionError(
            f"The signatures of '{client.reference.name}' are refused: one is larger than"
            f" {LONGEST_PAYLOAD} bytes.",
            resolution=_DO_NOT_USE,
        )
    if not layers:
        return {}
    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        client.fetch(digest, manifest, layers, Path(folder))
        return {layer.digest: blob_path(Path(folder), layer).read_bytes() for layer in layers}


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


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature of an image: what was signed, and the signature in base64."""

    payload: bytes
    text: str

    @property
    def layer(self) -> dict[str, Any]:
        """The layer in the image of signatures."""
        return {
            "mediaType": PAYLOAD,
            "digest": content_digest(self.payload),
            "size": len(self.payload),
            "annotations": {ANNOTATION: self.text},
        }


def make_signature(client: Repository, digest: str, facts: Facts, signer: Signer) -> Signature:
    """Return a signature of an image for ``add_signature``; arguments as ``sign``."""
    payload = payload_of(digest, facts, client.reference.name)
    return Signature(payload, base64.b64encode(signer(payload)).decode())


def add_signature(client: Writable, digest: str, made: Signature, signer: Signer) -> bool:
    """Add a signature to those of an image; return False if it is among them.

    A registry can't write a tag conditionally: of two signers at the same moment, the second may
    overwrite the signature of the first. So each signer calls this again a little later.

    Raises:
        As ``sign``.
    """
    layers = signature_layers(client, digest)
    if any(_is_same(one, made.layer) for one in layers):
        return False
    if len(layers) >= MOST_SIGNATURES and isinstance(signer, FileSigner):
        # Earlier signatures by this key have the same facts, with an older serial.
        own = _own_signatures(client, digest, signer.public)
        layers = [
            one for one in layers if (one.get("annotations") or {}).get(ANNOTATION) not in own
        ]
    if len(layers) >= MOST_SIGNATURES:
        repository, _, tag = signatures_name(client, digest).rpartition(":")
        raise ProvisionError(
            f"'{repository}@{digest}' has {len(layers)} signatures; with one more, hosts would read"
            " none of them.",
            resolution=f"Remove the tag '{tag}' from the registry, and sign again with each key"
            " that is in use.",
        )
    put_signatures(client, digest, [*layers, made.layer], [made.payload])
    return True


def _is_same(layer: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
    said = layer.get("annotations") or {}
    mine = made["annotations"][ANNOTATION]
    return bool(layer.get("digest") == made["digest"] and said.get(ANNOTATION) == mine)


def put_signatures(
    client: Writable, digest: str, layers: Sequence[dict[str, Any]], payloads: Sequence[bytes]
) -> None:
    """Write the signatures of an image.

    Args:
        client: The image's repository.
        digest: Digest of its manifest.
        layers: The signatures.
        payloads: Those of their payloads that the repository lacks.

    Raises:
        ProvisionError: The registry refuses.
    """
    config = json.dumps(_signature_config([str(layer["digest"]) for layer in layers])).encode()
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
    client.put_image(signature_tag(digest), json.dumps(manifest).encode(), [config, *payloads])


def _own_signatures(client: Repository, digest: str, key: PublicKey) -> set[str]:
    """Return the signatures of an image that a key made."""
    own = set()
    for payload, signature in _signatures(client, digest, []):
        with suppress(UntrustedError):
            verify_payload(payload, signature, digest=digest, keys=(key,))
            own.add(signature)
    return own


def _signature_config(payloads: Sequence[str]) -> dict[str, Any]:
    return {
        "architecture": "",
        "os": "",
        "created": "0001-01-01T00:00:00Z",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": list(payloads)},
        "history": [{"created": "0001-01-01T00:00:00Z"} for _ in payloads],
    }
