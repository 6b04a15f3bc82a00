"""The Pin: everything that can change an artifact, and nothing else.

Its digest names the artifact image, so an image is built again exactly when an input changed.
"""

import hashlib
import json
import re
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
)

from provision.documents import Frozen, like
from provision.errors import NotFoundError, redact
from provision.files import local_path

Sha256 = Annotated[str, like(r"^[0-9a-f]{64}$", "what sha256sum prints")]
ImageDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Name = Annotated[str, like(r"^[a-z0-9][a-z0-9._-]*$", "some-name_1.2", max_length=64)]
# On a host or in a container.
AbsolutePath = Annotated[str, like(r"^/[^\x00\n]*$", "/an/absolute/path")]
# Goes into file names, image tags and RUN lines: no blanks, quotes or slashes.
KernelRelease = Annotated[
    str, StringConstraints(pattern=r"^[0-9][A-Za-z0-9._+~-]*$", max_length=64)
]
Version = Annotated[str, like(r"^[0-9A-Za-z][A-Za-z0-9.+~_-]*$", "1.2.3 or 1.2", max_length=64)]
# As uname -m prints it.
Architecture = Literal["x86_64", "aarch64", "ppc64le", "s390x", "riscv64"]
# Debian policy 5.6.12, and epoch:version-release of RPM; the epoch's colon included.
PackageVersion = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][A-Za-z0-9.+:~^_-]*$")]
PackageName = Annotated[str, like(r"^[A-Za-z0-9][A-Za-z0-9+._-]+$", "demo-dkms")]


_URL = r"^https?://[^\s\"'\\$`]+$"


def _address(text: object) -> object:
    if not isinstance(text, str):
        return text
    if not re.search(_URL, text):
        raise ValueError(
            f"'{redact(text)}' is not a valid URL, such as https://vendor.example/file: it begins"
            " with http:// or https://, and has no blanks, quotes, '\\', '$' or '`'"
        )
    host, port = host_and_port(text)
    if not host or port == 0:
        raise ValueError(f"'{redact(text)}' names no host such as https://vendor.example/file")
    return text


def host_and_port(text: str) -> tuple[str | None, int | None]:
    """Return what an address names; errors quote no part of a password."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(
            f"'{redact(text)}' is not a valid URL: {redact(str(error))} (in a password, '/' is"
            " written as %2F, '?' as %3F, '#' as %23, '@' as %40)"
        ) from error
    return parts.hostname, port


def is_address(text: str) -> bool:
    """Return whether a text is what ``Url`` takes; package managers know other schemes too."""
    try:
        return _address(text) == text
    except ValueError:
        return False


# What git runs ssh for; no host begins as an option does. USER@HOST:PATH has no scheme.
_SSH = re.compile(r"(?:ssh://(?:\w[\w.-]*@)?[\w\[]|\w[\w.-]*@\w[\w.-]*:)[^\s\"'\\$`]+", re.ASCII)
_READ_BY_SHELLS = re.compile(r"[\s\"'\\$`]")


def _is_local(text: object) -> bool:
    return (
        isinstance(text, str) and local_path(text) is not None and not _READ_BY_SHELLS.search(text)
    )


def _file_address(text: object) -> object:
    return text if _is_local(text) else _address(text)


def _repository(text: object) -> object:
    if not isinstance(text, str) or _is_local(text) or _SSH.fullmatch(text):
        return text
    if text.startswith(("http:", "https:")):
        return _address(text)
    raise ValueError(
        f"'{redact(text)}' is not a valid repository address, such as https://vendor.example/x.git,"
        " ssh://git@vendor.example/x.git, git@vendor.example:x.git or /srv/x.git: it has no blanks,"
        " quotes, '\\', '$' or '`'"
    )


def is_repository(text: str) -> bool:
    """Return whether a text is what ``RepositoryUrl`` takes."""
    try:
        return _repository(text) == text
    except ValueError:
        return False


# An address of a file, or an absolute path of this machine, with or without file://.
FileUrl = Annotated[str, BeforeValidator(_file_address)]
# What git takes, as above.
RepositoryUrl = Annotated[str, BeforeValidator(_repository)]
# Goes into a RUN line: nothing that a shell reads.
Url = Annotated[str, like(_URL, "https://vendor.example/file"), BeforeValidator(_address)]
Commit = Annotated[str, like(r"^[0-9a-f]{40}$", "what git rev-parse prints")]
# Name and tag, as a Dockerfile's FROM takes it.
ImageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][A-Za-z0-9._/:-]*$")]


def _inside(path: str) -> str:
    if any(part in {"", ".", ".."} for part in path.split("/")):
        raise ValueError(f"'{path}' is no path below a folder")
    return path


# Below a repository's folder.
Location = Annotated[
    str,
    like(r"^[A-Za-z0-9][A-Za-z0-9+~^:%@=,._/-]*$", "lib/demo"),
    AfterValidator(_inside),
]


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
    url: FileUrl
    strip: int = Field(default=1, ge=0)


class GitCommit(Frozen):
    """A commit of a repository; ``sha256`` is that of ``git archive --format=tar COMMIT``."""

    url: RepositoryUrl
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
    """A git commit with the submodules that the build needs."""

    kind: Literal["git"] = "git"
    url: RepositoryUrl
    commit: Commit
    # Of ``git archive --format=tar COMMIT``, without submodules.
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
    """A self-extracting file (``.run``) of NVIDIA's, which is unpacked and never run."""

    kind: Literal["runfile"] = "runfile"
    version: Version
    architecture: Architecture
    layout: Literal[1] = 1
    # Types of files that go into no container, by their names in its list of files.
    leave_out: tuple[Annotated[str, like(r"^[A-Z0-9_]+$", "NVLIB_TYPE")], ...] = ()


Source = Annotated[
    PackageSource | ArchiveSource | GitSource | RunfileSource, Field(discriminator="kind")
]


# Raised by hand when the templates, scripts and distros' data of provision can give the same inputs
# another artifact; tests/golden holds it. Any other change of provision renews no Pin.
FORMAT = 1

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
    """The driver."""

    name: Name
    version: Version
    flavour: Name


class KernelPin(Frozen):
    """The kernel that the modules are for; ``architecture`` as ``uname -m`` prints it."""

    release: KernelRelease
    architecture: Architecture


class DistroPin(Frozen):
    """The distribution that the kernel and the build's packages come from."""

    id: Name
    version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][A-Za-z0-9._-]*$")]
    codename: Name

    @property
    def name(self) -> str:
        """Its name on command lines and in registries: ``debian:12``."""
        return f"{self.id}:{self.version}"


class BasePin(Frozen):
    """The base image of the build stages."""

    image: ImageName
    # Digest of the registry's manifest, or the image's id if it came from no registry.
    digest: ImageDigest


class PackagePin(Frozen):
    """A package of the distribution, installed in the build container at exactly this version."""

    name: PackageName
    version: PackageVersion


class ClosurePackage(Frozen):
    """A package of the build container, in exactly this build."""

    name: PackageName
    version: PackageVersion
    arch: Name
    sha256: Sha256
    size: int = Field(ge=0)
    # Its repository, as the solver names it.
    repository: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9:+._/@ -]*$")]
    # Its path in the repository.
    location: Location
    # ``upgrade`` if the base image has another version of it.
    action: Literal["install", "upgrade"] = "install"


class FilePin(Frozen):
    """A file of the recipe's folder that goes into the build (a patch)."""

    name: Annotated[str, like(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "some-name_1.2")]
    sha256: Sha256


class TreePin(Frozen):
    """The kernel tree that the modules are built in, where no packages hold the headers.

    The paths of its files are not part of it: the same bytes give the same modules.
    """

    kind: Literal["source", "prepared", "image"]
    # Sha256 of the tar file with the tree; None if the tree is in the base image.
    tree: Sha256 | None = None
    config: Sha256 | None = None
    # Sha256 of the kernel's Module.symvers; None if it is in a prepared tree, or the kernel has no
    # modversions.
    symvers: Sha256 | None = None
    # Sha256 of the tar file with the compiler; None if the compiler is a package, or in the base
    # image.
    compiler: Sha256 | None = None
    # The distro whose packages compile; None if everything is in the base image.
    toolchain: DistroPin | None = None
    # ``LLVM`` of the kernel's build, if Clang compiles; None for GCC.
    llvm: Annotated[str, StringConstraints(pattern=r"^(1|-[0-9]+)$")] | None = None


class Pin(Digested):
    """Everything that can change the artifact.

    No Pin sets ``components`` and ``signing_key``. They stay because digests are made of the JSON.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    driver: DriverPin
    kernel: KernelPin
    distro: DistroPin
    base: BasePin
    # The compiler that built the kernel; None if it is not a package (see ``tree``).
    compiler: PackagePin | None
    headers: tuple[PackagePin, ...]
    packages: tuple[PackagePin, ...]
    # Every package that is installed for the build, by name, without its addresses; empty if the
    # base image has everything.
    closure: tuple[ClosurePackage, ...] = ()
    components: tuple[()] = ()
    # What is built and shipped.
    sources: tuple[Source, ...]
    patches: tuple[FilePin, ...] = ()
    recipe: Sha256
    # `FORMAT` of the provision that made the Pin.
    format: int = Field(ge=1)
    signing_key: None = None
    # The kernel tree, if the headers are not packaged; the distro is then the kernel's, and the
    # tree names the one whose packages compile.
    tree: TreePin | None = None
    # Addresses of packages, by sha256, for who builds it: no input, and in no JSON of the Pin.
    urls: dict[Sha256, tuple[Url, ...]] = Field(default_factory=dict, exclude=True, repr=False)

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    @model_serializer(mode="wrap")
    def _said_if_any(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is empty, as the first Pins did, so that their digests stay."""
        data: dict[str, Any] = handler(self)
        return {k: v for k, v in data.items() if v or k not in {"closure", "tree"}}

    @property
    def image(self) -> str:
        """The artifact image's reference, ``provision/<driver>:<version>-<kernel>-<digest12>``."""
        label = f"{self.driver.version}-{self.kernel.release}"
        # '+' and '~' are legal in versions and not in tags; the digest keeps tags apart.
        tag = re.sub(r"[^A-Za-z0-9_.-]", "_", label)[: _TAG_LENGTH - _DIGEST_LENGTH - 1]
        return f"provision/{self.driver.name}:{tag}-{self.short_digest}"


class ArchitectureNames(NamedTuple):
    """What others call an architecture that ``uname -m`` prints."""

    # Of images and Kubernetes. Source:
    # https://github.com/containerd/platforms/blob/v1.0.0/database.go
    go: str
    debian: str
    # Of library folders. Source: https://wiki.debian.org/Multiarch/Tuples
    multiarch: str
    # Of folders below ``arch/`` of the kernel, whose Makefile takes x86_64 for x86.
    kernel: str
    # Of conditions and extensions: systemd.unit(5), ConditionArchitecture.
    systemd: str


ARCHITECTURES = MappingProxyType(
    {
        "x86_64": ArchitectureNames("amd64", "amd64", "x86_64-linux-gnu", "x86_64", "x86-64"),
        "aarch64": ArchitectureNames("arm64", "arm64", "aarch64-linux-gnu", "arm64", "arm64"),
        "ppc64le": ArchitectureNames(
            "ppc64le", "ppc64el", "powerpc64le-linux-gnu", "powerpc", "ppc64-le"
        ),
        "s390x": ArchitectureNames("s390x", "s390x", "s390x-linux-gnu", "s390", "s390x"),
        "riscv64": ArchitectureNames("riscv64", "riscv64", "riscv64-linux-gnu", "riscv", "riscv64"),
    }
)
MACHINE_OF_GO = MappingProxyType({names.go: machine for machine, names in ARCHITECTURES.items()})


def names_of(machine: str) -> ArchitectureNames:
    """Return the names of a machine."""
    known = ARCHITECTURES.get(machine)
    if known is None:
        raise NotFoundError(
            f"The architecture '{machine}' is not supported.",
            resolution=f"There are {', '.join(ARCHITECTURES)}.",
        )
    return known


def machine_of(name: str) -> str:
    """Return what ``uname -m`` prints on an architecture that is named so, or as by Go."""
    machine = MACHINE_OF_GO.get(name, name)
    names_of(machine)
    return machine
