"""Signatures of images in cosign's format: made, kept beside the images in a registry, verified.

The payload is a small JSON text that names the image's digest and the facts of the artifact; it is
signed with ECDSA over P-256. An image's signatures are the layers of another image, whose tag is
derived from the first digest. Sources:
https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md and
https://www.redhat.com/en/blog/container-image-signing (the payload's format).
"""

from __future__ import annotations

import base64
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from provision.errors import NotFoundError, ProvisionError, UntrustedError
from provision.registry.keys import PublicKey, Signer
from provision.registry.manifests import (
    OCI_CONFIG,
    OCI_MANIFEST,
    Index,
    blob_path,
    content_digest,
    parse_manifest,
)
from provision.registry.repositories import Repository, Writable

PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
ANNOTATION = "dev.cosignproject.cosign/signature"
_LONGEST_PAYLOAD = 64 << 10
_MOST_SIGNATURES = 64
_TYPE = "cosign container image signature"
# How far the clocks of a signer and a host may be apart. A host that took a serial of next year
# would take no other image until then.
MOST_AHEAD_S = 24 * 3600
# Attempts to write a signature again that others have overwritten.
_MOST_ROUNDS = 5
_DO_NOT_USE = (
    "Don't use it. Have it signed by those who build your artifacts ('provision registry sign'),"
    " or build it here: provision build DRIVER."
)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an artifact in a signature, besides the digest of its image."""

    # The Pin's digest.
    pin: str
    driver: str
    version: str
    flavour: str
    # Id and version of the kernel's distro: ``debian:12``.
    distro: str
    # The kernel's release.
    kernel: str
    # As ``uname -m`` prints it.
    architecture: str
    # When it was signed, in Unix seconds; the newer artifact has the greater serial.
    serial: int


@dataclass(frozen=True, slots=True)
class VerifiedSignature:
    """A verified signature."""

    # Name and fingerprint of the key that made it.
    key: str
    fingerprint: str
    # None: some lack.
    facts: Facts | None


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
        digest: Digest of the image's manifest.
        required: The required facts, by names of ``Facts``.
        oldest: The lowest accepted serial.

    Raises:
        UntrustedError: No signature counts; its details say why for each.
    """
    complaints: list[str] = []
    good: list[VerifiedSignature] = []
    for payload, signature in _signatures(client, digest, complaints):
        verified = _verify_payload(payload, signature, digest, keys)
        if isinstance(verified, str):
            complaints.append(verified)
            continue
        wrong = list(_wrong(verified, required, oldest))
        complaints += wrong
        if not wrong:
            good.append(verified)
    if not good:
        raise UntrustedError(
            f"'{client.reference.name}@{digest}' is refused: it has no signature from a trusted"
            " key.",
            resolution=_DO_NOT_USE,
            details="\n".join(dict.fromkeys(complaints)) or "it has no signature",
        )
    return max(good, key=lambda one: one.facts.serial if one.facts else 0)


def _wrong(verified: VerifiedSignature, required: Mapping[str, str], oldest: int) -> Iterator[str]:
    facts, by = verified.facts, f"the signature by {verified.key}"
    if facts is None:
        yield (
            f"{by} does not say which driver, version, flavour, distro, kernel, architecture, Pin"
            " and serial it is for"
        )
        return
    for name, value in required.items():
        if (signed := getattr(facts, name)) != value:
            yield f"{name}: {value} was asked for, and {signed} is signed"
    if facts.serial < oldest:
        yield (
            f"{by} is of {facts.serial} (Unix seconds), and not_before asks for {oldest} or later"
        )
    if facts.serial > (now := int(time.time())) + MOST_AHEAD_S:
        yield (
            f"{by} is of {facts.serial} (Unix seconds), more than a day after this host's clock"
            f" ({now}): one of the two clocks is wrong"
        )


def _verify_payload(
    payload: bytes, signature: str, digest: str, keys: Sequence[PublicKey]
) -> VerifiedSignature | str:
    """Return a signature of a trusted key for an image's digest, or why it is none."""
    try:
        raw = base64.b64decode(signature, validate=True)
    except ValueError:
        return "a signature is not base64"
    signer = next((key for key in keys if key.has_signed(payload, raw)), None)
    if signer is None:
        return "a signature is by none of the keys that are trusted"
    # From here on, the text comes from a trusted signer.
    try:
        document = json.loads(payload)
        critical = document["critical"]
        kind, signed = critical["type"], critical["image"]["docker-manifest-digest"]
        optional = document.get("optional") or {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "what is signed says nothing of an image"
    if kind != _TYPE or signed != digest:
        return f"a signature by {signer.name} is of another image"
    return VerifiedSignature(signer.name, signer.fingerprint, _facts(optional))


def _facts(optional: object) -> Facts | None:
    """Return the facts of a payload; None if some are missing.

    ``cosign sign -a serial=1`` writes every value as a text.
    """
    if not isinstance(optional, Mapping):
        return None
    texts = {name: optional.get(name) for name in Facts.__slots__ if name != "serial"}
    serial: Any = optional.get("serial")
    if isinstance(serial, str) and serial.isascii() and serial.isdigit() and len(serial) < 16:  # noqa: PLR2004 - digits that a JSON number has without loss
        serial = int(serial)
    if isinstance(serial, bool) or not isinstance(serial, int):
        return None
    if not all(isinstance(text, str) and text for text in texts.values()):
        return None
    return Facts(**{name: str(text) for name, text in texts.items()}, serial=serial)


def _signatures(client: Repository, digest: str, complaints: list[str]) -> list[tuple[bytes, str]]:
    """Return the payloads of an image's signatures, each with its signature in base64."""
    name = f"{client.reference.name}@{digest}"
    try:
        content = client.manifest(signature_tag(digest))
    except NotFoundError:
        complaints.append("it has no signature")
        return []
    manifest = parse_manifest(content.data, f"the signatures of {name}")
    if isinstance(manifest, Index) or len(manifest.layers) > _MOST_SIGNATURES:
        complaints.append(f"there are no signatures, or more than {_MOST_SIGNATURES}")
        return []
    layers = [
        layer
        for layer in manifest.layers
        if layer.media_type == PAYLOAD and ANNOTATION in layer.annotations
    ]
    if any(layer.size > _LONGEST_PAYLOAD for layer in layers):
        raise UntrustedError(
            f"The signatures of '{client.reference.name}' are refused: one is larger than"
            f" {_LONGEST_PAYLOAD} bytes.",
            resolution=_DO_NOT_USE,
        )
    if not layers:
        return []
    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        client.fetch(content.digest, manifest, layers, Path(folder))
        return [
            (blob_path(Path(folder), one).read_bytes(), one.annotations[ANNOTATION])
            for one in layers
        ]


def signature_tag(digest: str) -> str:
    """Return the tag of an image's signatures."""
    return f"{digest.replace(':', '-')}.sig"


def payload_of(digest: str, facts: Facts, name: str) -> bytes:
    """Return the payload to sign for an image; verifiers ignore its name, so that mirrors work."""
    document = {
        "critical": {
            "identity": {"docker-reference": name},
            "image": {"docker-manifest-digest": digest},
            "type": _TYPE,
        },
        "optional": asdict(facts),
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def sign(client: Writable, digest: str, facts: Facts, signer: Signer) -> str:
    """Add a signature to those of an image; return their name.

    A registry can't write a tag conditionally: of two signers at the same moment, the second may
    overwrite the signature of the first. So each looks again, when the other must have ended.
    """
    payload = payload_of(digest, facts, client.reference.name)
    signature = base64.b64encode(signer(payload)).decode()
    layer = {
        "mediaType": PAYLOAD,
        "digest": content_digest(payload),
        "size": len(payload),
        "annotations": {ANNOTATION: signature},
    }
    tag = signature_tag(digest)
    for _ in range(_MOST_ROUNDS):
        begun = time.monotonic()
        layers = _layers(client, tag)
        if any(one["annotations"].get(ANNOTATION) == signature for one in layers):
            break
        if len(layers) >= _MOST_SIGNATURES:
            raise ProvisionError(
                f"'{client.reference.name}@{digest}' has {len(layers)} signatures; with one more,"
                " hosts would read none of them.",
                resolution=f"Remove the tag '{tag}' from the registry, and sign again with each key"
                " that is in use.",
            )
        _put_signatures(client, tag, [*layers, layer], payload)
        # Who read before this was written needs about as long to write.
        time.sleep(2 * (time.monotonic() - begun))
    return f"{client.reference.name}:{tag}"


def _layers(client: Repository, tag: str) -> list[dict[str, Any]]:
    """Return the signatures under a tag as layers of a manifest; empty if it has none."""
    try:
        before = parse_manifest(client.manifest(tag).data, f"{client.reference.name}:{tag}")
    except NotFoundError:
        return []
    if isinstance(before, Index):
        return []
    members = {"media_type", "digest", "size", "annotations"}
    return [one.model_dump(mode="json", by_alias=True, include=members) for one in before.layers]


def _put_signatures(
    client: Writable, tag: str, layers: Sequence[Mapping[str, Any]], payload: bytes
) -> None:
    """Write signatures, of which the repository may lack one payload."""
    created = "0001-01-01T00:00:00Z"
    config = json.dumps(
        {
            "architecture": "",
            "os": "",
            "created": created,
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
            "history": [{"created": created} for _ in layers],
        }
    ).encode()
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
    client.put_image(tag, json.dumps(manifest).encode(), [config, payload])
