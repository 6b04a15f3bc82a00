"""The sources of a driver in a Pin: a model for each kind."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer

from provision.documents import Frozen
from provision.pin.identifiers import (
    Architecture,
    Commit,
    Location,
    PackageName,
    PackageVersion,
    Sha256,
    Url,
    Version,
)


class SourcePin(Frozen):
    """Members of every kind of source."""

    @property
    def text(self) -> str:
        """A description for people."""
        raise NotImplementedError

    @property
    def file(self) -> str | None:
        """Sha256 of its file in the build context; None if it has no such file."""
        return None

    @property
    def address(self) -> str | None:
        """Address of its file; None if the Pin does not hold it."""
        return None


class PackageSource(SourcePin):
    """A package that is unpacked, not installed: the driver's source or user space."""

    kind: Literal["deb"] = "deb"
    name: PackageName
    version: PackageVersion
    sha256: Sha256

    @property
    def text(self) -> str:
        """Its name and version."""
        return f"{self.name} {self.version}"

    @property
    def file(self) -> str | None:
        """Sha256 of the package."""
        return self.sha256


class _Download(SourcePin):
    """A file that the driver's vendor publishes at an address."""

    url: Url
    sha256: Sha256

    @property
    def text(self) -> str:
        """Its address and checksum."""
        return f"{self.url} sha256:{self.sha256}"

    @property
    def file(self) -> str | None:
        """Sha256 of the file."""
        return self.sha256

    @property
    def address(self) -> str | None:
        """The vendor's address of it."""
        return self.url


class ArchiveSource(_Download):
    """A tarball or zip file from the driver's vendor."""

    kind: Literal["archive"] = "archive"
    strip: int = Field(default=1, ge=0)


class GitCommit(Frozen):
    """A commit of a repository; ``sha256`` is that of ``git archive --format=tar COMMIT``."""

    url: Url
    commit: Commit
    sha256: Sha256

    @property
    def file_name(self) -> str:
        """Name of the file that has its objects, in a package store and in a build context."""
        text = f"{self.commit} {self.sha256}"
        return f"{hashlib.sha256(text.encode()).hexdigest()}.tar"


class GitSubmodule(GitCommit):
    """A commit of another repository, and the folder of the source that it fills."""

    path: Location


class GitSource(SourcePin):
    """A git commit with the submodules that the build needs.

    Attributes:
        sha256: Of ``git archive --format=tar COMMIT``, without submodules.
    """

    kind: Literal["git"] = "git"
    url: Url
    commit: Commit
    sha256: Sha256
    submodules: tuple[GitSubmodule, ...] = ()

    @property
    def text(self) -> str:
        """Its repository and commit."""
        return f"{self.url} {self.commit}"

    @property
    def commits(self) -> tuple[GitCommit, ...]:
        """All commits to fetch: the source's, then its submodules'."""
        own = GitCommit(url=self.url, commit=self.commit, sha256=self.sha256)
        return (own, *self.submodules)

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        # A Pin without submodules keeps the digest that it had before they were known.
        data: dict[str, object] = handler(self)
        if not self.submodules:
            del data["submodules"]
        return data


class RunfileSource(_Download):
    """A self-extracting file (``.run``) of NVIDIA's, which is unpacked and never run.

    Attributes:
        leave_out: Types of files that go into no container, by their names in its list of files.
    """

    kind: Literal["runfile"] = "runfile"
    version: Version
    architecture: Architecture
    layout: Literal[1] = 1
    leave_out: tuple[Annotated[str, StringConstraints(pattern=r"^[A-Z0-9_]+$")], ...] = ()


Source = Annotated[
    PackageSource | ArchiveSource | GitSource | RunfileSource, Field(discriminator="kind")
]
