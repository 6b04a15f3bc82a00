"""Keys and registries: what modules are signed with, and whose signatures count."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Annotated, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from provision.config.drivers import AbsolutePath
from provision.documents import Frozen
from provision.pin import Name

_SCHEME = "pkcs11:"
_PIN = "pin-value"
_PIN_SOURCE = "pin-source"
# https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pulling-manifests
RegistryAddress = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$")
]
HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?$")]


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
        key: File of the private key, or a PKCS#11 URI (RFC 7512) without a PIN; None: there is
            none.
        pin_file: File with the key's passphrase or the token's PIN in its first line; None: the
            file that the URI names (``pin-source``), the variable ``KBUILD_SIGN_PIN``, or there
            is none.
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
        certificate: File of its certificate.
        hash: Digest of the signature.
    """

    certificate: AbsolutePath | None = None
    hash: Literal["sha256", "sha384", "sha512"] = "sha256"

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if (self.key is None) != (self.certificate is None):
            raise ValueError("'key' and 'certificate' go together")
        return self


class RegistryConfig(Frozen):
    """Where artifact images are pulled from before they are built.

    Attributes:
        address: ``host[:port][/prefix]``; None: nothing is pulled.
        mirrors: Addresses that are asked first, in their order; they have the same images.
        push: Whether what was built here is pushed there.
        sign_key: The private key that signs images, what was built and pushed by itself among them:
            a file or a PKCS#11 URI; None: nothing is signed unasked.
        sign_password_file: File with that key's password or PIN in its first line.
        ca: File with the certificates of the authorities that the registry's own is from.
        plain_http: Whether the registry is spoken to without TLS.
        token_hosts: Further hosts that the registry's credentials may be sent to, for tokens.
        auth_file: File of credentials, as Docker or podman write it; None: where they keep theirs.
    """

    address: RegistryAddress | None = None
    mirrors: tuple[RegistryAddress, ...] = ()
    push: bool = False
    sign_key: KeyAddress | None = None
    sign_password_file: AbsolutePath | None = None
    ca: AbsolutePath | None = None
    plain_http: bool = False
    token_hosts: tuple[HostName, ...] = ()
    auth_file: AbsolutePath | None = None

    @model_validator(mode="after")
    def _need_each_other(self) -> Self:
        if self.address is None and (self.push or self.mirrors):
            raise ValueError("'push' and 'mirrors' need an 'address'")
        return self

    @property
    def addresses(self) -> tuple[str, ...]:
        """What is asked, in this order."""
        return (*self.mirrors, self.address) if self.address else ()


class TrustRule(Frozen):
    """Whose signatures count.

    Attributes:
        keys: Folder of public keys, or one file; an image that one of them signed may be installed.
        insecure: Whether unsigned images are installed.
        not_before: Signatures from before this day (UTC) do not count.
    """

    keys: AbsolutePath | None = None
    insecure: bool = False
    not_before: date | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.insecure and self.keys is not None:
            raise ValueError("'keys' and 'insecure = true' contradict each other")
        return self

    @property
    def oldest(self) -> int:
        """The least serial that counts, in Unix seconds."""
        if self.not_before is None:
            return 0
        return int(datetime.combine(self.not_before, time(), UTC).timestamp())


class TrustConfig(TrustRule):
    """Whose signatures count, for everything and for parts of it.

    Attributes:
        registries: Other rules for images of a registry, or of a part of one: by
            ``host[:port][/prefix]``; the longest that fits counts.
        drivers: Other rules for drivers; they come before those of registries.
    """

    registries: dict[RegistryAddress, TrustRule] = Field(default_factory=dict)
    drivers: dict[Name, TrustRule] = Field(default_factory=dict)

    def rule(self, repository: str, driver: str) -> TrustRule:
        """Return what counts for a driver of a repository, given with its registry."""
        if driver in self.drivers:
            return self.drivers[driver]
        fitting = [a for a in self.registries if f"{repository}/".startswith(f"{a}/")]
        return self.registries[max(fitting, key=len)] if fitting else self
