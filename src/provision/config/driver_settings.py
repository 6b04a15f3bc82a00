"""The drivers that a host should have, what may be done to get there, and who signs modules."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from provision.documents import Frozen
from provision.pin import Name, Version

_SCHEME = "pkcs11:"
_PIN = "pin-value"
_PIN_SOURCE = "pin-source"


def _parameter(value: object) -> object:
    if isinstance(value, bool):
        return "Y" if value else "N"
    return str(value) if isinstance(value, int) else value


# What the kernel takes as names: C identifiers; modprobe takes '-' for '_' in a module's.
ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*$")]
ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# Source: https://docs.kernel.org/admin-guide/kernel-parameters.html: values end at a blank.
# Booleans are Y and N there.
Parameter = Annotated[
    str,
    StringConstraints(pattern=r"^[^\s\"]*$"),
    BeforeValidator(_parameter),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^[^\s\"]*$"},
                {"type": "integer"},
                {"type": "boolean"},
            ]
        }
    ),
]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00\n]*$")]


class DriverConfig(Frozen):
    """One driver that the host should have, such as ``[drivers.nvidia]``.

    Attributes:
        version: ``"latest"``; a branch (``"535"``, ``"0.12"``): its newest version that fits the
            kernel; a kind of branch (``"lts"``, ``"production"``, ``"new-feature"``); or one
            version (``"0.12.7"``).
        flavour: One of the driver's flavours. Without it: its default.
        options: Parameters of its modules: ``{ MODULE = { NAME = VALUE } }``; numbers and booleans
            may be given as such. They count at the next load and change no artifact. Without it:
            none.
    """

    version: Version = "latest"
    flavour: Name | None = None
    options: dict[ModuleName, dict[ParameterName, Parameter]] = Field(default_factory=dict)


class PolicyConfig(Frozen):
    """What may be done without asking.

    Attributes:
        unload: ``"idle"``: modules that no one uses are unloaded for newer ones; ``"never"``: that
            is left to a reboot.
        prebuild: Whether artifacts are made for kernels that may boot next, before they do.
        keep: How many older artifacts ``gc`` leaves of each kernel, to roll back to.
        update: ``"timer"``: ``provision-repeat.timer`` moves ``latest``, branches and kinds of
            branches forward; ``"never"``: they stay until they are moved by hand.
        hold_updates: Flatcar only: whether an update of the system is held as long as drivers
            don't build for its kernel; takes effect with ``provision units``
            ([how](../how-to/coreos.md)).
        build: ``"fallback"``: what the registry does not have is built here; ``"never"``: it is
            missing then (exit code 3); ``"always"``: the registry is not asked.
    """

    unload: Literal["idle", "never"] = "idle"
    prebuild: bool = True
    keep: int = Field(default=1, ge=0)
    update: Literal["never", "timer"] = "never"
    hold_updates: bool = False
    build: Literal["never", "fallback", "always"] = "fallback"


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
