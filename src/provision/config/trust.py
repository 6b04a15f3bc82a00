"""Registries, the keys that sign, and whose signatures count."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Annotated, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from provision.documents import Frozen
from provision.pin import AbsolutePath, Name

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
        key: File of the private key, or a PKCS#11 URI without ``pin-value``. Without it: modules
            are not signed.
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
        certificate: File of the key's certificate, in PEM or DER; it needs ``key``.
        hash: ``"sha256"``, ``"sha384"`` or ``"sha512"``.
    """

    certificate: AbsolutePath | None = None
    hash: Literal["sha256", "sha384", "sha512"] = "sha256"

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if (self.key is None) != (self.certificate is None):
            raise ValueError("'key' and 'certificate' go together")
        return self


def _with_host(address: str) -> str:
    host = address.partition("/")[0]
    if "." not in host and ":" not in host:
        raise ValueError(
            f"'{host}' is no registry's host: that has a '.' or a port, such as {host}:5000"
        )
    return address


# https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pulling-manifests
RegistryAddress = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$"),
    AfterValidator(_with_host),
]


class RegistryConfig(Frozen):
    """Where artifact images are pulled from before they are built.

    Attributes:
        address: ``host[:port][/prefix]``: the host pulls the image
            ``ADDRESS/DRIVER:VERSION-FLAVOUR-KERNEL.DISTRO`` instead of building it. Without it: it
            pulls nothing.
        mirrors: Addresses with the same images and signatures, which the host queries first.
            Without it: none.
        folders: Folders on the host with bundles ([how](../how-to/air-gap.md)), which it searches
            before any registry. Without it: none.
        push: Whether the host pushes what it builds to ``address``. A failed push is reported and
            changes nothing on the host.
        sign_key: The private key with which pushes and ``provision registry sign`` sign: a file, or
            a PKCS#11 URI without a PIN. Without it: pushed images are not signed.
        sign_password_file: File whose first line is that key's password or PIN. Without it: the key
            has none.
        ca: File with the certificate authorities of the registry's certificate. Without it: those
            of the system.
        plain_http: Whether the registry is reached without TLS. A registry on this machine
            (``localhost``, ``127.…``) always is, unless ``ca`` is set.
        auth_file: File with credentials, in the format of Docker and podman. Without it: the files
            of root's ``docker login`` and ``podman login``.
    """

    address: RegistryAddress | None = None
    mirrors: tuple[RegistryAddress, ...] = ()
    folders: tuple[AbsolutePath, ...] = ()
    push: bool = False
    sign_key: KeyAddress | None = None
    sign_password_file: AbsolutePath | None = None
    ca: AbsolutePath | None = None
    plain_http: bool = False
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
        keys: Folder of public keys (``*.pub``, ``*.pem``), or one file. One of the keys must have
            signed an image. Without it, if ``address`` is set: an error, and nothing is pulled.
        insecure: Whether the host installs unsigned images. Everyone who may push then decides what
            the kernel loads; ``status`` and ``doctor`` say so. The key of ``[signing]`` does not
            sign the modules of such images, so a kernel that requires signatures refuses them.
        not_before: A day, such as ``2026-11-01``. Signatures from before it (UTC) are refused; for
            fresh hosts, which have no earlier image to compare with. Without it: no such day.
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
        registries: Other rules for a registry or a part of it:
            ``[trust.registries."registry.example:5000/tests"]`` with the three keys above. The
            longest match applies.
        drivers: Other rules for a driver: ``[trust.drivers.nvidia]``. They take precedence over
            those of registries.
    """

    registries: dict[RegistryAddress, TrustRule] = Field(default_factory=dict)
    drivers: dict[Name, TrustRule] = Field(default_factory=dict)

    def rule(self, repository: str, driver: str) -> TrustRule:
        """Return what counts for a driver of a repository, given with its registry."""
        if driver in self.drivers:
            return self.drivers[driver]
        fitting = [a for a in self.registries if f"{repository}/".startswith(f"{a}/")]
        return self.registries[max(fitting, key=len)] if fitting else self
