"""Signatures of images in cosign's format: keys, payloads, and the facts of artifacts in them.

The payload is a small JSON text that names the image's digest; it is signed with ECDSA over P-256.
Source: https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md and
https://www.redhat.com/en/blog/container-image-signing (the payload's format).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.errors import ConfigError, Mistake, ProvisionError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
ANNOTATION = "dev.cosignproject.cosign/signature"
LONGEST_PAYLOAD = 64 << 10
_TYPE = "cosign container image signature"
_KEY_SUFFIXES = (".pub", ".pem")
_LONGEST_KEY = 64 << 10
CURVE = "secp256r1"
# Catalogues have serials of 15 digits at most; a host that took a greater one would take no other.
_NO_SERIAL = 10**15

# Signs bytes: ECDSA over P-256 with SHA-256, in DER.
Signer = Callable[[bytes], bytes]


class UntrustedError(ProvisionError):
    """An image lacks a trusted signature, or its signature has other facts."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an artifact in a signature, besides the digest of its image.

    Attributes:
        pin: Digest of its Pin.
        driver: The driver's name.
        version: The driver's version.
        flavour: The driver's flavour.
        distro: Id and version of the kernel's distro: ``debian:12``.
        kernel: The kernel's release.
        architecture: As ``uname -m`` prints it.
        serial: When it was signed, in Unix seconds; the newer artifact has the greater serial.
    """

    pin: str
    driver: str
    version: str
    flavour: str
    distro: str
    kernel: str
    architecture: str
    serial: int


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that may sign.

    Attributes:
        name: Its file's name.
        key: The key.
    """

    name: str
    key: EllipticCurvePublicKey

    def has_signed(self, payload: bytes, signature: bytes) -> bool:
        """Return whether a signature of a payload is this key's."""
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - loads a library
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA  # noqa: PLC0415 - as above
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above

        try:
            self.key.verify(signature, payload, ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True

    @property
    def fingerprint(self) -> str:
        """The sha256 of the key (its SubjectPublicKeyInfo in DER), in hexadecimal digits.

        ``openssl pkey -pubin -in fleet.pub -outform DER | sha256sum`` prints the same.
        """
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - loads a library
            Encoding,
            PublicFormat,
        )

        data = self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class VerifiedSignature:
    """A verified signature.

    Attributes:
        key: The name of the key that made it.
        facts: The signed facts; None if some are missing.
    """

    key: str
    facts: Facts | None


def load_keys(place: Path) -> tuple[PublicKey, ...]:
    """Return the keys of a folder (``*.pub``, ``*.pem``), or of one file.

    Args:
        place: The folder or file.

    Raises:
        ConfigError: The folder or file is missing or has no key, or files hold no usable key; all
            of them are named.
    """
    names = [place]
    if place.is_dir():
        names = sorted(path for path in place.iterdir() if path.suffix in _KEY_SUFFIXES)
    elif not place.is_file():
        names = []
    if not names:
        raise ConfigError(
            str(place),
            [Mistake("", "there is no public key, so no image of a registry can be trusted")],
            resolution="Copy the public key of those who build your artifacts there, such as"
            f" {place}/fleet.pub; 'provision registry key' makes a pair.",
        )
    keys, mistakes = [], []
    for path in names:
        if path != place and not path.is_file():
            # A named pipe would keep its reader waiting.
            mistakes.append(Mistake(path.name, "is no regular file, or a link to none"))
            continue
        try:
            keys.append(PublicKey(path.name, _public_key(path)))
        except (OSError, ValueError) as error:
            mistakes.append(Mistake(path.name, str(error)))
    if mistakes:
        raise ConfigError(
            str(place),
            mistakes,
            resolution="Keep only public keys of ECDSA over P-256 there, as PEM: what 'provision"
            " registry key' and 'cosign generate-key-pair' write as .pub.",
        )
    return tuple(keys)


def _public_key(path: Path) -> EllipticCurvePublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - loads a library
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - as above
        load_pem_public_key,
    )

    data = key_bytes(path)
    if b"PRIVATE KEY" in data:
        raise ValueError("is a private key, which must not lie on hosts that only verify")
    if data.count(b"-----BEGIN PUBLIC KEY") > 1:
        # The library reads the first one only: what the others signed would be refused.
        raise ValueError("has several keys; each needs a file of its own")
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("is no public key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != CURVE:
        raise ValueError("is no key of ECDSA over P-256")
    return key


def key_bytes(path: Path) -> bytes:
    """Return the bytes of a key's file.

    Raises:
        ValueError: It is too large for a key.
        OSError: It can't be read.
    """
    with path.open("rb") as stream:
        data = stream.read(_LONGEST_KEY + 1)
    if len(data) > _LONGEST_KEY:
        raise ValueError("is too large for a key")
    return data


def payload_of(digest: str, facts: Facts | Mapping[str, str], name: str) -> bytes:
    """Return the payload to sign for an image.

    Args:
        digest: Digest of the image's manifest.
        facts: The artifact's facts; for other content, a mapping with other names.
        name: Its name in the registry; verifiers ignore it, so that mirrors work.
    """
    document = {
        "critical": {
            "identity": {"docker-reference": name},
            "image": {"docker-manifest-digest": digest},
            "type": _TYPE,
        },
        "optional": asdict(facts) if isinstance(facts, Facts) else dict(facts),
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def verify_payload(
    payload: bytes, signature: str, *, digest: str, keys: Sequence[PublicKey]
) -> VerifiedSignature:
    """Verify a payload's signature; return the key and the signed facts.

    Args:
        payload: The signed bytes.
        signature: The signature in base64.
        digest: Digest of the image's manifest.
        keys: The trusted keys.

    Raises:
        UntrustedError: No trusted key has signed it, or it is for another image.
    """
    try:
        raw = base64.b64decode(signature, validate=True)
    except ValueError as error:
        raise UntrustedError("a signature is not base64") from error
    signer = next((key for key in keys if key.has_signed(payload, raw)), None)
    if signer is None:
        raise UntrustedError("a signature is by none of the keys that are trusted")
    # From here on, the text comes from a trusted signer.
    try:
        document = json.loads(payload)
        critical = document["critical"]
        kind, signed = critical["type"], critical["image"]["docker-manifest-digest"]
        optional = document.get("optional") or {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UntrustedError("what is signed says nothing of an image") from error
    if kind != _TYPE or signed != digest:
        raise UntrustedError(f"a signature by {signer.name} is of another image")
    return VerifiedSignature(signer.name, _facts(optional))


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
    if isinstance(serial, bool) or not isinstance(serial, int) or abs(serial) >= _NO_SERIAL:
        return None
    if not all(isinstance(text, str) and text for text in texts.values()):
        return None
    return Facts(**{name: str(text) for name, text in texts.items()}, serial=serial)


def differences(facts: Facts, required: Mapping[str, str]) -> Iterable[str]:
    """Yield a line for each signed fact that differs from the required one."""
    for name, value in required.items():
        found = getattr(facts, name)
        if found != value:
            yield f"{name}: {value} was asked for, and {found} is signed"
