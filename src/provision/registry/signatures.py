"""Keys, and signatures of images in cosign's format: made, kept beside the images, verified.

Keys are ECDSA over P-256 in PEM files, private ones in tokens as well. A secret goes to programs
through standard input only: every user can read a program's arguments, and the processes of the
same user its environment.

A signature's payload is a small JSON text that names the image's digest and the facts of the
artifact. An image's signatures are the layers of another image, whose tag is derived from the first
digest. Sources: https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md and
https://www.redhat.com/en/blog/container-image-signing (the payload's format).
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from provision.config import KeyConfig
from provision.documents import refusing
from provision.errors import (
    ConfigError,
    Mistake,
    NotFoundError,
    ProvisionError,
    UntrustedError,
    UsageError,
)
from provision.files import settled_path, write_atomic
from provision.registry import (
    OCI_CONFIG,
    OCI_MANIFEST,
    Index,
    blob_path,
    content_digest,
    parse_manifest,
)
from provision.registry.repositories import Repository
from provision.run import run
from provision.trust import LONGEST, fingerprint, key_files, require_trusted

URI_SCHEME = "pkcs11:"
_CURVE = "secp256r1"
# What the kernel's own build reads a key's passphrase or a token's PIN from.
PIN_VARIABLE = "KBUILD_SIGN_PIN"
# How OpenSSL and tokens learn where their parts are: openssl-env(7), the README of libp11,
# provider-pkcs11(7), softhsm2.conf(5).
_LIBP11_MODULE = "PKCS11_MODULE_PATH"
_PROVIDER_MODULE = "PKCS11_PROVIDER_MODULE"
_TOKEN_VARIABLES = (
    "OPENSSL_CONF",
    "OPENSSL_ENGINES",
    "OPENSSL_MODULES",
    _LIBP11_MODULE,
    _PROVIDER_MODULE,
    "SOFTHSM2_CONF",
)
_PROVIDER = ("-provider", "pkcs11", "-provider", "default")
_ENGINE = ("-engine", "pkcs11", "-keyform", "engine")
_WHY = "reach a key in a token"
# OpenSSL reads no longer ones: APP_PASS_LEN in its apps/include/apps.h.
_LONGEST_PASSWORD = 1023
_CORRECT = "Correct [signing] in /etc/provision/provision.toml."

# Signs bytes: ECDSA over P-256 with SHA-256, in DER.
Signer = Callable[[bytes], bytes]
# Returns the key's password or the token's PIN.
Password = Callable[[], bytes]


class PublicKey(NamedTuple):
    """A key that may sign."""

    name: str
    key: ec.EllipticCurvePublicKey
    # Of its file, as ``provision.trust`` has it.
    fingerprint: str

    def has_signed(self, payload: bytes, signature: bytes) -> bool:
        """Return whether a signature of a payload is this key's."""
        try:
            self.key.verify(signature, payload, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


def load_keys(place: Path) -> tuple[PublicKey, ...]:
    """Return the keys of a folder (``*.pub``, ``*.pem``), or of one file."""
    names = key_files(place)
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
            keys.append(_public_key(path))
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


def settled_keys(root: Path, keys: str) -> tuple[PublicKey, ...]:
    """Return the keys of a folder or file that settings name, if only root may change them."""
    place = settled_path(root, keys)
    for path in key_files(place):
        require_trusted(path)
    return load_keys(place)


def _public_key(path: Path) -> PublicKey:
    data = _key_bytes(path)
    if b"PRIVATE KEY" in data:
        raise ValueError("is a private key, which must not lie on hosts that only verify")
    if data.count(b"-----BEGIN PUBLIC KEY") > 1:
        # The library reads the first one only: what the others signed would be refused.
        raise ValueError("has several keys; each needs a file of its own")
    try:
        key = pem.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("is no public key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != _CURVE:
        raise ValueError("is no key of ECDSA over P-256")
    return PublicKey(path.name, key, fingerprint(data) or "")


def _key_bytes(path: Path) -> bytes:
    """Return the bytes of a key's file.

    Raises:
        ValueError: It is too large for a key.
    """
    with path.open("rb") as stream:
        data = stream.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise ValueError("is too large for a key")
    return data


@dataclass(frozen=True, slots=True)
class FileSigner:
    """Signs with the private key of a file."""

    private: ec.EllipticCurvePrivateKey
    public: PublicKey

    def __call__(self, data: bytes) -> bytes:
        """Return the signature of bytes, as ``Signer``."""
        return self.private.sign(data, ec.ECDSA(SHA256()))


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """Signs with the private key of a token, by OpenSSL."""

    uri: str
    key: SigningKey
    # The PIN, as OpenSSL reads it from standard input.
    secret: bytes = field(repr=False)

    def __call__(self, data: bytes) -> bytes:
        """Return the signature of bytes, as ``Signer``."""
        words = self.key.words if self.key.secret else (*self.key.words, "-passin", "stdin")
        with tempfile.TemporaryDirectory(prefix="provision-") as name:
            payload, signature = Path(name, "payload"), Path(name, "signature")
            payload.write_bytes(data)
            how = ("openssl", "pkeyutl", "-sign", "-rawin", "-digest", "sha256", *words)
            done = run(
                (*how, "-in", str(payload), "-out", str(signature)),
                why="sign an image",
                env=self.key.environment,
                stdin=self.secret,
                check=False,
            )
            if done.returncode != 0:
                raise ProvisionError(
                    f"'{self.uri}' could not sign an image.",
                    resolution="Check whether the URI and the PIN are right, and the key one of"
                    " ECDSA over P-256: p11tool --login --list-privkeys.",
                    details=done.stderr.strip() or None,
                )
            return signature.read_bytes()


def open_signer(key: str, password: Password, *, root: Path = Path("/")) -> Signer:
    """Return a signer with a private key: its file, or a PKCS#11 URI without a PIN.

    ``password`` is called for an encrypted file and for tokens.
    """
    if not key.startswith(URI_SCHEME):
        return open_private_key(Path(key), password)
    try:
        with refusing(f"'{key}' is no key that can be used."):
            config = KeyConfig(key=key)
    except ProvisionError as error:
        raise UsageError(
            error.message, details=error.details, resolution=error.resolution
        ) from error
    opened = open_key(root, config)
    if opened is None:
        raise NotFoundError(
            f"There is no key '{key}'.",
            resolution="List the token's keys: p11tool --login --list-privkeys",
        )
    return TokenSigner(key, opened, opened.secret or password() + b"\n")


def generate_key(prefix: Path, password: bytes | None) -> tuple[Path, Path]:
    """Make a pair of keys, ``PREFIX.key`` (mode 0600) and ``PREFIX.pub``; return their files.

    Existing files are never replaced. Without a password, the private key is not encrypted.
    """
    if prefix.name in {"", ".."}:
        raise UsageError(
            f"'{prefix}' is a folder, and names no key.",
            resolution=f"Give a name in it: provision registry key --output {prefix / 'fleet'}",
        )
    private, public = (prefix.with_name(f"{prefix.name}.{end}") for end in ("key", "pub"))
    for path in (private, public):
        if path.exists() or path.is_symlink():
            raise ProvisionError(
                f"'{path}' is there already, and is not replaced.",
                resolution="Give another name: provision registry key --output NAME",
            )
    key = ec.generate_private_key(ec.SECP256R1())
    how = pem.BestAvailableEncryption(password) if password else pem.NoEncryption()
    secret = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, how)
    write_atomic(private, secret, mode=0o600)
    write_atomic(
        public,
        key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo),
    )
    return private, public


def open_private_key(path: Path, password: Password) -> FileSigner:
    """Return a signer with the private key of a file; an encrypted one takes the password."""
    try:
        data = _key_bytes(path)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no key '{path}'.",
            resolution=f"Make one: provision registry key --output {path.with_suffix('')}",
        ) from error
    except ValueError as error:
        raise ProvisionError(
            f"'{path}' {error}.",
            resolution="Name a key file, or make one: provision registry key --output FILE",
        ) from error
    if b"ENCRYPTED SIGSTORE PRIVATE KEY" in data or b"ENCRYPTED COSIGN PRIVATE KEY" in data:
        raise ProvisionError(
            f"'{path}' is in cosign's own format, which only cosign reads.",
            resolution="Sign with 'cosign sign --key' instead (docs/how-to/many-hosts.md), or make"
            " a key of provision's own: provision registry key.",
        )
    try:
        try:
            key = pem.load_pem_private_key(data, None)
        except TypeError:
            # The library raises this for an encrypted key.
            key = pem.load_pem_private_key(data, password())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ProvisionError(
            f"'{path}' can't be read: the password is wrong, or it is no private key in PEM.",
            resolution="Try again with the key's password.",
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != _CURVE:
        raise ProvisionError(
            f"'{path}' is no key of ECDSA over P-256.",
            resolution="Make one: provision registry key",
        )
    return FileSigner(key, of_private_key(path.name, key))


def of_private_key(name: str, key: ec.EllipticCurvePrivateKey) -> PublicKey:
    """Return the public half of a private key."""
    public = key.public_key()
    text = public.public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(name, public, fingerprint(text) or "")


class SigningKey(NamedTuple):
    """What ``openssl`` is given to sign with a key."""

    # Its arguments; nothing in them is secret.
    words: tuple[str, ...]
    # What it reads from standard input; None: nothing.
    secret: bytes | None
    environment: Mapping[str, str]

    def __repr__(self) -> str:
        return f"SigningKey(words={self.words!r})"


def open_key(root: Path, signing: KeyConfig) -> SigningKey | None:
    """Return how to sign with a host's key; None: it has none."""
    if signing.key is None:
        return None
    if signing.pin_file is not None:
        secret = read_password(settled_path(root, signing.pin_file)) + b"\n"
    elif pin := os.environ.get(PIN_VARIABLE, ""):
        secret = pin.encode() + b"\n"
    else:
        secret = None
    asked = ("-passin", "stdin") if secret is not None else ()
    if not signing.is_token:
        file = settled_path(root, signing.key)
        if not file.is_file():
            raise NotFoundError(f"There is no key '{file}'.", resolution=_CORRECT)
        return SigningKey(("-inkey", str(file), *asked), secret, {})
    environment = {name: os.environ[name] for name in _TOKEN_VARIABLES if name in os.environ}
    if _LIBP11_MODULE in environment:
        # The provider and the engine call the same thing by different names.
        environment.setdefault(_PROVIDER_MODULE, environment[_LIBP11_MODULE])
    way = _way_to_tokens(environment)
    return SigningKey((*way, "-inkey", signing.key, *asked), secret, environment)


def read_password(path: Path) -> bytes:
    """Return the first line of a file, as the password or PIN of a key."""
    try:
        with path.open("rb") as stream:
            return password_line(stream)
    except OSError as error:
        raise NotFoundError(
            f"The file '{path}', with the password or PIN of a key, can't be read:"
            f" {error.strerror}.",
            resolution="Name a file that this user can read.",
        ) from error
    except ValueError as error:
        raise ProvisionError(
            f"The first line of '{path}' is no password or PIN: {error}.",
            resolution="Write the password or PIN into its first line.",
        ) from error


def password_line(stream: IO[bytes]) -> bytes:
    """Return the first line of a stream; a ``ValueError``: it is empty, or OpenSSL reads less."""
    line = stream.readline(_LONGEST_PASSWORD + 2).rstrip(b"\r\n")
    if not line:
        raise ValueError("it has no bytes")
    if len(line) > _LONGEST_PASSWORD:
        raise ValueError(f"it has more than {_LONGEST_PASSWORD} bytes")
    return line


def _way_to_tokens(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments by which this host's OpenSSL reaches tokens.

    The provider comes first: engines are deprecated since OpenSSL 3.0, but not every distro has
    packaged the provider.
    """
    ways = (
        (("list", "-providers", "-provider", "pkcs11"), _PROVIDER),
        (("engine", "pkcs11"), _ENGINE),
    )
    for question, words in ways:
        if run(["openssl", *question], why=_WHY, env=environment, check=False).returncode == 0:
            return words
    raise NotFoundError(
        "OpenSSL can't reach tokens on this host: it has neither the provider nor the engine"
        " 'pkcs11'.",
        resolution="Install one: pkcs11-provider, or else libengine-pkcs11-openssl (Debian,"
        " Ubuntu) or openssl-pkcs11 (RHEL 9).",
    )


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


class SignedFacts(NamedTuple):
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


class VerifiedSignature(NamedTuple):
    """A verified signature."""

    # Name and fingerprint of the key that made it.
    key: str
    fingerprint: str
    # None: some lack.
    facts: SignedFacts | None


def verify_signature(
    client: Repository,
    digest: str,
    keys: Sequence[PublicKey],
    required: Mapping[str, str],
    *,
    oldest: int = 0,
) -> VerifiedSignature:
    """Return the newest good signature of an image's manifest, with the required facts.

    Without one, the details of the ``UntrustedError`` say why for each. ``oldest`` is the lowest
    accepted serial.
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


def _facts(optional: object) -> SignedFacts | None:
    """Return the facts of a payload; None if some are missing.

    ``cosign sign -a serial=1`` writes every value as a text.
    """
    if not isinstance(optional, Mapping):
        return None
    texts = {name: optional.get(name) for name in SignedFacts._fields if name != "serial"}
    serial: Any = optional.get("serial")
    if isinstance(serial, str) and serial.isascii() and serial.isdigit() and len(serial) < 16:  # noqa: PLR2004 - digits that a JSON number has without loss
        serial = int(serial)
    if isinstance(serial, bool) or not isinstance(serial, int):
        return None
    if not all(isinstance(text, str) and text for text in texts.values()):
        return None
    return SignedFacts(**{name: str(text) for name, text in texts.items()}, serial=serial)


def _signatures(client: Repository, digest: str, complaints: list[str]) -> list[tuple[bytes, str]]:
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


def payload_of(digest: str, facts: SignedFacts, name: str) -> bytes:
    """Return the payload to sign for an image; verifiers ignore its name, so that mirrors work."""
    document = {
        "critical": {
            "identity": {"docker-reference": name},
            "image": {"docker-manifest-digest": digest},
            "type": _TYPE,
        },
        "optional": facts._asdict(),
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def sign(client: Repository, digest: str, facts: SignedFacts, signer: Signer) -> str:
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
    client: Repository, tag: str, layers: Sequence[Mapping[str, Any]], payload: bytes
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
