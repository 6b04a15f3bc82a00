"""Released versions of drivers that a recipe lists: files, commits and ``.run`` files."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from provision.catalogue.fields import (
    PublicUrl,
    UrlTemplate,
    public,
)
from provision.documents import Frozen
from provision.pin import (
    Architecture,
    ArchiveSource,
    Commit,
    GitSource,
    GitSubmodule,
    Sha256,
    Version,
)


class ArchiveRelease(Frozen):
    """One released version as a file; ``strip``: leading path parts to drop.

    Attributes:
        version: The driver's version.
        url: ``http`` or ``https`` address of a tarball, a zip file or a Debian package (``.deb``).
            A package with zstd compression needs ``zstd`` among the build's ``packages``.
        sha256: Checksum of the file.
        strip: How many leading parts to drop from the paths inside.
    """

    version: Version
    url: PublicUrl
    sha256: Sha256
    strip: int = Field(default=1, ge=0)

    def source(self) -> ArchiveSource:
        """Return what goes into the Pin."""
        return ArchiveSource(url=self.url, sha256=self.sha256, strip=self.strip)


def _public_submodule(module: GitSubmodule) -> GitSubmodule:
    public(module.url)
    return module


PublicSubmodule = Annotated[GitSubmodule, AfterValidator(_public_submodule)]


class GitRelease(Frozen):
    """One released version as a git commit; sha256 of ``git archive --format=tar COMMIT``.

    Attributes:
        version: The driver's version.
        url: Address of the repository.
        commit: 40 hexadecimal digits; tags and branches move.
        sha256: Checksum of ``git archive --format=tar COMMIT``.
        submodules: The submodules that the build needs: a table each, see below. Without it: none.
    """

    version: Version
    url: PublicUrl
    commit: Commit
    sha256: Sha256
    submodules: tuple[PublicSubmodule, ...] = ()

    def source(self) -> GitSource:
        """Return what goes into the Pin."""
        return GitSource(
            url=self.url, commit=self.commit, sha256=self.sha256, submodules=self.submodules
        )

    @model_validator(mode="after")
    def _folders_apart(self) -> Self:
        paths = sorted(module.path for module in self.submodules)
        for before, after in pairwise(paths):
            if f"{after}/".startswith(f"{before}/"):
                raise ValueError(f"two submodules fill the folder '{after}'")
        return self


class RunfileRelease(Frozen):
    """One released version as a ``.run``.

    Attributes:
        version: The driver's version.
        architecture: Architecture that ``sha256`` is for.
        url: As in the source, for this version. Without it: that of the source.
        sha256: Checksum of the file. Without it: the vendor's checksum [counts as it was first
            seen](../decisions/15-sources.md).
        checksums: As in the source, for this version. Without it: that of the source.
    """

    version: Version
    architecture: Architecture = "x86_64"
    url: UrlTemplate | None = None
    sha256: Sha256 | None = None
    checksums: UrlTemplate | None = None


def _release(value: object) -> str:
    is_git = isinstance(value, GitRelease) or (isinstance(value, dict) and "commit" in value)
    return "<commit>" if is_git else "<file>"


# A file or a commit; messages don't show the names in angle brackets.
AnyRelease = Annotated[
    Annotated[ArchiveRelease, Tag("<file>")] | Annotated[GitRelease, Tag("<commit>")],
    Discriminator(_release),
]
