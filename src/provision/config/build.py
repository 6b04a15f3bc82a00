"""With what artifacts are built: the engine and the distros' archives."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from provision.documents import Frozen

Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s\"'\\$`]+$")]


class EngineConfig(Frozen):
    """The container engine that builds.

    Attributes:
        host: Its address, such as ``unix:///run/docker.sock``; None: ``DOCKER_HOST``, or Docker's
            default.
        network: Network of build containers, as ``docker build --network`` takes it.
        jobs: How many compilers run at once; None: one a processor.
    """

    host: str | None = None
    network: str | None = None
    jobs: int | None = Field(default=None, ge=1)


class ArchiveConfig(Frozen):
    """Where a distro's packages come from, when not from the machine's own configuration.

    Attributes:
        mirror: Address of the archive.
        security_mirror: Address of its security updates.
        keyring: File with the keys that sign its index.
    """

    mirror: Url | None = None
    security_mirror: Url | None = None
    keyring: str | None = None


class DistroConfig(Frozen):
    """Settings of one distro, such as ``[distros.debian]``.

    Attributes:
        archive: Where its packages come from.
        base_images: Base image by version: ``{ "12" = "debian:bookworm@sha256:…" }``; the digest
            is optional.
    """

    archive: ArchiveConfig = ArchiveConfig()
    base_images: dict[str, str] = Field(default_factory=dict)
