"""Registries, and whose signatures count for what they serve."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from provision.config.drivers import AbsolutePath
from provision.config.signing import KeyAddress
from provision.documents import Frozen
from provision.pin import Name

# https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pulling-manifests
RegistryAddress = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$")
]
HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?$")]


class RegistryConfig(Frozen):
    """Where artifact images are pulled from before they are built.

    Attributes:
        address: ``host[:port][/prefix]``; None: nothing is pulled.
        mirrors: Addresses that are asked first, in their order; they have the same images.
        folders: Folders on the host that are looked into before any address is asked: bundles.
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
    folders: tuple[AbsolutePath, ...] = ()
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
