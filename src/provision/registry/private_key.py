"""Private keys that sign images: ECDSA over P-256, in PEM files or in tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from provision.config import KeyConfig
from provision.documents import refusing
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.files import write_atomic
from provision.registry.image_signature import CURVE, PublicKey, Signer, key_bytes
from provision.registry.signing_key import SigningKey, open_key
from provision.run import run

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

URI_SCHEME = "pkcs11:"

# Returns the key's password or the token's PIN.
Password = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class FileSigner:
    """Signs with the private key of a file.

    Attributes:
        private: The key.
        public: Its public key.
    """

    private: EllipticCurvePrivateKey
    public: PublicKey

    def __call__(self, data: bytes) -> bytes:
        """Return the signature of bytes, as ``Signer``."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA  # noqa: PLC0415 - loads a library
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above

        return self.private.sign(data, ECDSA(SHA256()))


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """Signs with the private key of a token, by OpenSSL.

    Attributes:
        uri: Its PKCS#11 URI, for messages.
        key: The key, as OpenSSL takes it.
        secret: The PIN, as OpenSSL reads it from standard input.
    """

    uri: str
    key: SigningKey
    secret: bytes = field(repr=False)

    def __call__(self, data: bytes) -> bytes:
        """Return the signature of bytes, as ``Signer``.

        Raises:
            ProvisionError: OpenSSL failed.
        """
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
    """Return a signer with a private key.

    Args:
        key: Its file, or a PKCS#11 URI without a PIN.
        password: Returns the password; called for an encrypted file and for tokens.
        root: Root of the host that a URI's ``pin-source`` is on.

    Raises:
        NotFoundError: There is no such key, or OpenSSL can't reach tokens.
        UsageError: The URI contains a PIN, or names two.
        ProvisionError: It is not a key of ECDSA over P-256, or the password is wrong.
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

    Args:
        prefix: Path without suffix; existing files are never replaced.
        password: Encrypts the private key; None: it is not encrypted.

    Raises:
        UsageError: The prefix is not a file name.
        ProvisionError: One of the files exists.
        OSError: The folder can't be written.
    """
    from cryptography.hazmat.primitives import serialization as pem  # noqa: PLC0415 - loads a library
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - as above

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
    """Return a signer with the private key of a file.

    Args:
        path: PEM, encrypted or not.
        password: Returns the password; called for an encrypted file.

    Raises:
        NotFoundError: There is no such file.
        ProvisionError: It holds no usable key, or the password is wrong.
    """
    key = _private_key(path, password)
    return FileSigner(key, PublicKey(path.name, key.public_key()))


def _private_key(path: Path, password: Password) -> EllipticCurvePrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - as above
        load_pem_private_key,
    )

    try:
        data = key_bytes(path)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no key '{path}'.",
            resolution=f"Make one: provision registry key --output {path.with_suffix('')}",
        ) from error
    except ValueError as error:
        raise ProvisionError(
            f"'{path}' {error}.",
            resolution="Name a key file: provision registry key --output FILE makes one.",
        ) from error
    if b"ENCRYPTED SIGSTORE PRIVATE KEY" in data or b"ENCRYPTED COSIGN PRIVATE KEY" in data:
        raise ProvisionError(
            f"'{path}' is in cosign's own format, which only cosign reads.",
            resolution="Sign with 'cosign sign --key' instead (docs/how-to/many-hosts.md), or make"
            " a key of provision's own: provision registry key.",
        )
    try:
        try:
            key = load_pem_private_key(data, None)
        except TypeError:
            # The library raises this for an encrypted key.
            key = load_pem_private_key(data, password())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ProvisionError(
            f"'{path}' can't be read: the password is wrong, or it is no private key in PEM.",
            resolution="Try again with the key's password.",
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != CURVE:
        raise ProvisionError(
            f"'{path}' is no key of ECDSA over P-256.",
            resolution="Make one: provision registry key",
        )
    return key
