"""Everything that can change the result, and nothing else, as for drivers (``provision.pin``)."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from pydantic import StringConstraints

from provision.documents import Frozen
from provision.pin import BasePin, DistroPin, FilePin, Name, PackagePin, PackageVersion, Sha256

DEFAULT_PREFIX = "/opt/provision/python"

# Names go into file names and RUN lines; Debian's have '+' and '~' too.
_FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+~-]*$")]
# Two folders or more: an archive of '/opt' itself would clash with what is there. ELF headers and
# scripts' first lines name it, so no blanks.
Prefix = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*){2,}$")]


class SourcePin(FilePin):
    """A file of the source package."""

    name: _FileName


class PythonPin(Frozen):
    """What a host's Python is made of.

    Attributes:
        version: Python's own, such as ``3.11.2``.
        package: Version of the distro's source package.
        prefix: Where it lies on hosts; programs name their loader by its whole path.
        architecture: As ``uname -m`` prints it.
        distro: Whose source and libraries.
        base: The base image of the build.
        original: The source as upstream released it.
        patches: The distro's changes.
        packages: Build tools and libraries.
        template: Digest of the Dockerfile's template and its helpers.
        keyring: Of the keys that the archive is verified with, where they are not the distro's own.
    """

    version: Annotated[str, StringConstraints(pattern=r"^3(\.[0-9]+)+$")]
    package: PackageVersion
    prefix: Prefix
    architecture: Name
    distro: DistroPin
    base: BasePin
    original: SourcePin
    patches: SourcePin
    packages: tuple[PackagePin, ...]
    template: Sha256
    keyring: Sha256 | None = None

    def canonical_json(self) -> str:
        """Return the one JSON text of this pin: sorted keys, no blanks."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """``sha256:`` and the sha256 of the canonical JSON."""
        return f"sha256:{hashlib.sha256(self.canonical_json().encode()).hexdigest()}"

    @property
    def short_digest(self) -> str:
        """The digest's first 12 hexadecimal digits."""
        return self.digest.removeprefix("sha256:")[:12]

    @property
    def image(self) -> str:
        """The name of the image that holds the result."""
        return f"provision/host-python:{self.version}-{self.short_digest}"

    @property
    def archive_name(self) -> str:
        """The usual name of the archive."""
        return f"provision-python-{self.version}-{self.architecture}.tar.gz"
