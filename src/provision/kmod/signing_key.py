"""How OpenSSL gets at the key that modules are signed with, and at its passphrase or PIN.

A secret goes through standard input only: every user can read a program's arguments, and the
processes of the same user its environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
_WHY = "sign kernel modules"
# OpenSSL reads no longer ones: APP_PASS_LEN in its apps/include/apps.h.
_LONGEST_PIN = 1023
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


def on_host(root: Path, name: str) -> Path:
    """Return a file of a host, by its absolute path there."""
    return in_root(root, name)


def _key_file(root: Path, name: str) -> Path:
    path = on_host(root, name)
    if not path.is_file():
        raise NotFoundError(f"There is no key '{path}'.", resolution=_CORRECT)
    return path


def _secret(root: Path, signing: KeyConfig) -> bytes | None:
    if signing.pin_path is None:
        pin = os.environ.get(PIN_VARIABLE, "").encode()
        return pin + b"\n" if pin else None
    path = on_host(root, signing.pin_path)
    try:
        with path.open("rb") as stream:
            pin = stream.readline(_LONGEST_PIN + 2).rstrip(b"\r\n")
    except OSError as error:
        raise NotFoundError(
            f"The file '{path}', with the passphrase or PIN of the key that modules are signed"
            f" with, can't be read: {error.strerror}.",
            resolution=_CORRECT,
        ) from error
    if not 0 < len(pin) <= _LONGEST_PIN:
        raise ProvisionError(
            f"The first line of '{path}' is no passphrase or PIN: it has"
            f" {'no bytes' if not pin else f'more than {_LONGEST_PIN} bytes'}.",
            resolution=f"Write the passphrase or PIN into its first line. {_CORRECT}",
        )
    return pin + b"\n"


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
