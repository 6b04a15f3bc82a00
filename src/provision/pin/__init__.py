"""The Pin: everything that can change an artifact, and nothing else.

Its digest names the artifact image, so an image is built again exactly when an input changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
)

from provision.documents import Frozen
from provision.pin.identifiers import (
    Architecture,
    Commit,
    ImageDigest,
    ImageName,
    KernelRelease,
    Location,
    Name,
    PackageName,
    PackageVersion,
    Sha256,
    Url,
    Version,
    is_address,
)
from provision.pin.sources import (
    ArchiveSource,
    GitCommit,
    GitSource,
    GitSubmodule,
    PackageSource,
    RunfileSource,
    Source,
    SourcePin,
)

__all__ = [
    "PIN_LABEL",
    "Architecture",
    "ArchiveSource",
    "BasePin",
    "ClosurePackage",
    "Commit",
    "Digested",
    "DistroPin",
    "DriverPin",
    "FilePin",
    "GitCommit",
    "GitSource",
    "GitSubmodule",
    "ImageDigest",
    "ImageName",
    "KernelPin",
    "KernelRelease",
    "Location",
    "Name",
    "PackageName",
    "PackagePin",
    "PackageSource",
    "PackageVersion",
    "Pin",
    "RunfileSource",
    "Sha256",
    "Source",
    "SourcePin",
    "TreePin",
    "Url",
    "Version",
    "is_address",
    "keyring_digest",
]

# Label of an artifact image: its Pin, as canonical JSON.
PIN_LABEL = "provision.pin"

_DIGEST_LENGTH = 12
# https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pulling-manifests
_TAG_LENGTH = 128


class Digested(Frozen):
    """A document that is identified by the digest of its canonical JSON."""

    def canonical_json(self) -> str:
        """Return the one JSON text of this document: sorted keys, no blanks, ASCII only.

        The same as RFC 8785 for these values: strings of ASCII, integers and null.
        """
        data = self.model_dump(mode="json", by_alias=True)
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """``sha256:`` and the sha256 of the canonical JSON."""
        return f"sha256:{hashlib.sha256(self.canonical_json().encode()).hexdigest()}"

    @property
    def short_digest(self) -> str:
        """The digest's first 12 hexadecimal digits; store entries and tags have them."""
        return self.digest.removeprefix("sha256:")[:_DIGEST_LENGTH]


class DriverPin(Frozen):
    """Which driver."""

    name: Name
    version: Version
    flavour: Name


class KernelPin(Frozen):
    """Which kernel the modules are for; ``architecture`` as ``uname -m`` prints it."""

    release: KernelRelease
    architecture: Architecture


class DistroPin(Frozen):
    """Which distribution the kernel and the build's packages come from."""

    id: Name
    version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][A-Za-z0-9._-]*$")]
    codename: Name


class BasePin(Frozen):
    """The base image of the build stages.

    Attributes:
        image: Name and tag, as a Dockerfile's FROM takes it.
        digest: Of the registry's manifest, or the image's own id where it came from no registry.
    """

    image: ImageName
    digest: ImageDigest


class PackagePin(Frozen):
    """A package of the distribution, installed in the build container at exactly this version."""

    name: PackageName
    version: PackageVersion


class ClosurePackage(Frozen):
    """A package that the build container gets, whole, in exactly this build.

    Attributes:
        name: Its name.
        version: As its family writes it: ``1:2.3-4`` for Debian's and for RPM's.
        arch: As its family calls it (``amd64``, ``x86_64``, ``noarch``).
        sha256: Of its file.
        size: Bytes of its file.
        repository: Which one it is from, as the solver calls it.
        location: Its path in there.
        action: Whether the base image has it in another version.
    """

    name: PackageName
    version: PackageVersion
    arch: Name
    sha256: Sha256
    size: int = Field(ge=0)
    repository: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9:+._/@ -]*$")]
    location: Location
    action: Literal["install", "upgrade"] = "install"


class FilePin(Frozen):
    """A file of the recipe's folder that goes into the build (a patch)."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    sha256: Sha256


class TreePin(Frozen):
    """The kernel tree that the modules are built in, where no packages hold the headers.

    Where its files lie is no part of it: the same bytes give the same modules.

    Attributes:
        kind: ``source`` is a kernel's source, which the build configures and prepares;
            ``prepared`` is what a kernel's own build left for external modules; ``image`` is the
            same, in the base image.
        tree: Of the tar file that holds the tree; None: it lies in the base image.
        config: Of the kernel's configuration; None: it lies in a prepared tree.
        symvers: Of the kernel's Module.symvers; None: it lies in a prepared tree, or the kernel
            has no modversions.
        compiler: Of the tar file that holds the compiler; None: the compiler is a package, or in
            the base image.
        toolchain: The distro whose packages compile; None: everything is in the base image.
        llvm: ``LLVM`` of the kernel's build, where Clang compiles; None: it is GCC.
    """

    kind: Literal["source", "prepared", "image"]
    tree: Sha256 | None = None
    config: Sha256 | None = None
    symvers: Sha256 | None = None
    compiler: Sha256 | None = None
    toolchain: DistroPin | None = None
    llvm: Annotated[str, StringConstraints(pattern=r"^(1|-[0-9]+)$")] | None = None


class Pin(Digested):
    """Everything that can change the artifact.

    ``components``, ``signing_key`` and ``keyring`` are of Pins that versions before closures
    wrote. No new Pin sets them; they stay because digests are of their JSON: without them,
    artifacts in stores could not be read any more, and every other one would get a new name.

    Attributes:
        compiler: The compiler that built the kernel; None: it is no package (see ``tree``).
        headers: The packages that hold the kernel's headers.
        packages: Further build tools.
        closure: Every package that is installed for the build, by name; empty where the packages
            above are all that is pinned. Their addresses are no part of it.
        components: Sections of the archive that the sources need besides ``main``.
        sources: What is built and shipped.
        patches: Applied in this order.
        recipe: Digest of the driver.toml parts that reach the build.
        template: Digest of the Dockerfile template, its macros and the collector.
        signing_key: Fingerprint of the key that signs the modules; None: they are not signed.
        keyring: Of the keys that the build's archive is verified with, where they are not the
            distro's own: another authority may give a version another content.
        tree: The kernel tree, where the headers are no packages; the distro is then the kernel's,
            and the tree names the one whose packages compile.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    driver: DriverPin
    kernel: KernelPin
    distro: DistroPin
    base: BasePin
    compiler: PackagePin | None
    headers: tuple[PackagePin, ...]
    packages: tuple[PackagePin, ...]
    closure: tuple[ClosurePackage, ...] = ()
    components: tuple[Name, ...] = ()
    sources: tuple[Source, ...]
    patches: tuple[FilePin, ...] = ()
    recipe: Sha256
    template: Sha256
    signing_key: str | None = None
    keyring: Sha256 | None = None
    tree: TreePin | None = None

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    @model_serializer(mode="wrap")
    def _said_if_any(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what a Pin says nothing of: such Pins are older than these members."""
        data: dict[str, Any] = handler(self)
        for name in ("keyring", "tree"):
            if data[name] is None:
                del data[name]
        if not data["closure"]:
            del data["closure"]
        return data

    @property
    def is_signed_by_hosts(self) -> bool:
        """Whether each host signs the modules with its own key, whatever key the Pin names."""
        return bool(self.closure) or self.tree is not None

    @property
    def image(self) -> str:
        """The artifact image's reference, ``provision/<driver>:<version>-<kernel>-<digest12>``."""
        label = f"{self.driver.version}-{self.kernel.release}"
        # '+' and '~' are legal in versions and not in tags; the digest keeps tags apart.
        tag = re.sub(r"[^A-Za-z0-9_.-]", "_", label)[: _TAG_LENGTH - _DIGEST_LENGTH - 1]
        return f"provision/{self.driver.name}:{tag}-{self.short_digest}"


def keyring_digest(keyring: bytes | None) -> str | None:
    """Return what a Pin says of the keys of an archive; None: they are the distro's own."""
    return None if keyring is None else hashlib.sha256(keyring).hexdigest()
