"""The keys that sign and verify: ECDSA over P-256 in PEM files, private keys in tokens as well.

A secret goes to programs through standard input only: every user can read a program's arguments,
and the processes of the same user its environment.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from provision.config import KeyConfig
from provision.documents import refusing
from provision.errors import ConfigError, Mistake, NotFoundError, ProvisionError, UsageError
from provision.files import settled_path, write_atomic
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


@dataclass(frozen=True, slots=True)
class PublicKey:
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
    """Return a signer with a private key.

    Args:
        key: Its file, or a PKCS#11 URI without a PIN.
        password: Returns the password; called for an encrypted file and for tokens.
        root: Root of the host that a URI's ``pin-source`` is on.
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
    """Return a signer with the private key of a file.

    Args:
        password: Returns the password; called for an encrypted file.
    """
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


@dataclass(frozen=True, slots=True)
class SigningKey:
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
    if signing.pin_path is not None:
        secret = read_password(settled_path(root, signing.pin_path)) + b"\n"
    elif pin := os.environ.get(PIN_VARIABLE, ""):
        secret = pin.encode() + b"\n"
    else:
        secret = None
    asked = ("-passin", "stdin") if secret is not None else ()
    uri = signing.token_uri
    if uri is None:
        file = settled_path(root, signing.key)
        if not file.is_file():
            raise NotFoundError(f"There is no key '{file}'.", resolution=_CORRECT)
        return SigningKey(("-inkey", str(file), *asked), secret, {})
    environment = {name: os.environ[name] for name in _TOKEN_VARIABLES if name in os.environ}
    if _LIBP11_MODULE in environment:
        # The provider and the engine call the same thing by different names.
        environment.setdefault(_PROVIDER_MODULE, environment[_LIBP11_MODULE])
    way = _way_to_tokens(environment)
    return SigningKey((*way, "-inkey", uri, *asked), secret, environment)


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
    """Return the first line of a stream, without its end.

    Raises:
        ValueError: It is empty, or longer than OpenSSL reads.
    """
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
