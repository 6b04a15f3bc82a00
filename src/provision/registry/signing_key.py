"""How OpenSSL gets at a private key in a file or token, and the password or PIN of one.

What is signed with it has a module of its own each, because formats and programs differ:
``kmod.module_signatures`` signs kernel modules (PKCS#7, by OpenSSL), and
``registry.private_key`` images (cosign's ECDSA).

A secret goes through standard input only: every user can read a program's arguments, and the
processes of the same user its environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from provision.config import KeyConfig
from provision.errors import NotFoundError, ProvisionError
from provision.files import in_root
from provision.run import run

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


@dataclass(frozen=True, slots=True)
class SigningKey:
    """What ``openssl`` is given to sign with a key.

    Attributes:
        words: Its arguments; nothing in them is secret.
        secret: What it reads from standard input; None: nothing.
        environment: Variables that lead to a token.
    """

    words: tuple[str, ...]
    secret: bytes | None
    environment: Mapping[str, str]

    def __repr__(self) -> str:
        return f"SigningKey(words={self.words!r})"


def open_key(root: Path, signing: KeyConfig) -> SigningKey | None:
    """Return how to sign with a host's key; None: it has none.

    Args:
        root: Root of the host that key and PIN are on.
        signing: Which key.

    Raises:
        NotFoundError: There is no such key, no file with its PIN, or OpenSSL can't reach tokens.
        ProvisionError: The file with the PIN has none.
    """
    if signing.key is None:
        return None
    secret = _secret(root, signing)
    asked = ("-passin", "stdin") if secret is not None else ()
    uri = signing.token_uri
    if uri is None:
        return SigningKey(("-inkey", str(_key_file(root, signing.key)), *asked), secret, {})
    environment = _token_environment()
    way = _way_to_tokens(environment)
    return SigningKey((*way, "-inkey", uri, *asked), secret, environment)


def _key_file(root: Path, name: str) -> Path:
    path = in_root(root, name)
    if not path.is_file():
        raise NotFoundError(f"There is no key '{path}'.", resolution=_CORRECT)
    return path


def _secret(root: Path, signing: KeyConfig) -> bytes | None:
    if signing.pin_path is None:
        pin = os.environ.get(PIN_VARIABLE, "").encode()
        return pin + b"\n" if pin else None
    return read_password(in_root(root, signing.pin_path)) + b"\n"


def read_password(path: Path) -> bytes:
    """Return the first line of a file, as the password or PIN of a key.

    Raises:
        NotFoundError: It can't be read.
        ProvisionError: It has no password.
    """
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
        OSError: It can't be read.
    """
    line = stream.readline(_LONGEST_PASSWORD + 2).rstrip(b"\r\n")
    if not line:
        raise ValueError("it has no bytes")
    if len(line) > _LONGEST_PASSWORD:
        raise ValueError(f"it has more than {_LONGEST_PASSWORD} bytes")
    return line


def _token_environment() -> dict[str, str]:
    found = {name: os.environ[name] for name in _TOKEN_VARIABLES if name in os.environ}
    if _LIBP11_MODULE in found:
        # The provider and the engine call the same thing by different names.
        found.setdefault(_PROVIDER_MODULE, found[_LIBP11_MODULE])
    return found


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
