"""The key that kernel modules are signed with."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, StringConstraints, model_validator

from provision.config.drivers import AbsolutePath
from provision.documents import Frozen

_SCHEME = "pkcs11:"
_PIN = "pin-value"
_PIN_SOURCE = "pin-source"


def _has_no_pin(address: str) -> str:
    # Decoded and in one case: readers of such addresses differ in what they take for the word.
    if address.startswith(_SCHEME) and _PIN in unquote(address).lower():
        raise ValueError(
            "has the token's PIN in it, which any user could then read in the list of processes:"
            " take 'pin-value' out of it, and name a file that has the PIN ('pin_file')"
        )
    return address


KeyAddress = Annotated[
    str,
    StringConstraints(pattern=r"^(/[^\x00\n]*|pkcs11:[^\s]+)$"),
    AfterValidator(_has_no_pin),
]


class KeyConfig(Frozen):
    """A private key.

    Attributes:
        key: File of the private key, or a PKCS#11 URI; one with ``pin-value`` is refused. Without
            it: modules are not signed.
        pin_file: File with the key's passphrase or the token's PIN in its first line. Without it:
            the URI's ``pin-source=file:/path``, else ``KBUILD_SIGN_PIN`` of the environment.
    """

    key: KeyAddress | None = None
    pin_file: AbsolutePath | None = None

    @model_validator(mode="after")
    def _has_one_pin(self) -> Self:
        source = self._pin_source()
        if source is not None and not source.startswith("/"):
            raise ValueError("'pin-source' in 'key' names no file: write it as file:/path")
        if source is not None and self.pin_file is not None:
            raise ValueError("'pin_file' and 'pin-source' in 'key' both name the file of the PIN")
        return self

    @property
    def token_uri(self) -> str | None:
        """The URI of a key in a token, without where its PIN is; None: the key is in a file."""
        if self.key is None or not self.key.startswith(_SCHEME):
            return None
        address, _, _ = self.key.partition("?")
        kept = [word for word in self._query() if not word.startswith(f"{_PIN_SOURCE}=")]
        return "?".join([address, "&".join(kept)]) if kept else address

    @property
    def pin_path(self) -> str | None:
        """The file with the passphrase or PIN; None: none is named."""
        return self.pin_file or self._pin_source()

    def _query(self) -> list[str]:
        is_token = self.key is not None and self.key.startswith(_SCHEME)
        query = str(self.key).partition("?")[2] if is_token else ""
        return [word for word in query.split("&") if word]

    def _pin_source(self) -> str | None:
        """Return the file that the URI names: an absolute path, or a ``file:`` URI (RFC 7512)."""
        for word in self._query():
            name, _, value = word.partition("=")
            if name == _PIN_SOURCE:
                source = unquote(value)
                parts = urlsplit(source)
                return unquote(parts.path) if parts.scheme == "file" else source
        return None


class SigningConfig(KeyConfig):
    """The key that kernel modules are signed with; without one they are not signed.

    Attributes:
        certificate: File of its certificate, PEM or DER; goes with ``key``.
        hash: ``"sha256"``, ``"sha384"`` or ``"sha512"``.
    """

    certificate: AbsolutePath | None = None
    hash: Literal["sha256", "sha384", "sha512"] = "sha256"

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if (self.key is None) != (self.certificate is None):
            raise ValueError("'key' and 'certificate' go together")
        return self
