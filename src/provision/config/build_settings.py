"""With what artifacts are built: the engine and the distros' archives."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from provision.documents import Frozen
from provision.pin import AbsolutePath, Sha256, Url


def _address(text: str) -> str:
    # Says what is wrong with the port or with an IPv6 address.
    if urlsplit(text).port == 0:
        raise ValueError("0 is not a port")
    return text


EngineAddress = Annotated[
    str,
    StringConstraints(pattern=r"^(unix|tcp|https?|ssh)://[^\s]+$"),
    AfterValidator(_address),
]
ProxyAddress = Annotated[
    str, StringConstraints(pattern=r"^https?://[^\s/]+/?$"), AfterValidator(_address)
]
# A name of an image, with its digest or without.
BaseImage = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9][A-Za-z0-9._/:-]*(@sha256:[0-9a-f]{64})?$"),
]
Toolchain = Annotated[str, StringConstraints(pattern=r"^(image|[a-z0-9._-]+:[A-Za-z0-9._-]+)$")]


class EngineConfig(Frozen):
    """The container engine that builds.

    Attributes:
        host: Address of the engine's socket. Without it: ``DOCKER_HOST``, or the usual sockets.
        network: Network of the containers that download, as ``docker run --network`` takes it.
            Drivers are built without a network. Without it: the engine's default.
        jobs: Number of compilers that run in parallel. Without it: one for each processor.
    """

    host: EngineAddress | None = None
    network: str | None = None
    jobs: int | None = Field(default=None, ge=1)


class NetworkConfig(Frozen):
    """How this host reaches servers: in units, in a shell and in the containers of builds.

    Authorities are not set here: those of the system count, in containers too. The container engine
    pulls base images by its own settings.

    Attributes:
        proxy: Address of the proxy for ``http`` and ``https``, with user and password if it needs
            them. It takes precedence over the variables of a shell, which units do not have. A
            proxy on this machine's loopback is reached from containers only with ``[engine] network
            = "host"``. Without it: ``https_proxy``, ``http_proxy`` and ``no_proxy``.
        no_proxy: Hosts and domains that are reached directly, as in the variable ``no_proxy``.
            Without it: none.
    """

    proxy: ProxyAddress | None = None
    no_proxy: tuple[Annotated[str, StringConstraints(pattern=r"^[^\s,]+$")], ...] = ()

    def variables(self) -> dict[str, str]:
        """Return the variables by which programs learn of the proxy; empty without one."""
        if self.proxy is None:
            return {}
        return {
            "http_proxy": self.proxy,
            "https_proxy": self.proxy,
            "no_proxy": ",".join(self.no_proxy),
        }

    @model_validator(mode="after")
    def _has_proxy(self) -> Self:
        if self.no_proxy and self.proxy is None:
            raise ValueError("no_proxy has no effect without proxy")
        return self


class ArchiveConfig(Frozen):
    """Where a distro's packages come from, when not from the machine's own configuration.

    Attributes:
        mirror: Address of the archive, ``http`` or ``https``. Without it: the machine's own apt
            configuration.
        security_mirror: Address of its security updates. Without it, if ``mirror`` is set: for
            Ubuntu the same address, because its mirrors have that suite too; for Debian no security
            updates, with a warning. Else the machine's own apt configuration.
        keyring: File with the keys that sign its index, binary or armored. Without it: the distro's
            own keyring.
        backports: Whether the release's backports are read too, for kernels such as
            6.12.9+bpo-amd64. As with apt, their other packages are used only if no other suite has
            them. Without it: they are read if the machine's own apt configuration names them.
        snapshot: Whether the mirror keeps an old state on purpose. Its index is then accepted
            although it has expired or is older than the last one. Without it: ``false``; in the
            machine's own apt configuration, ``Check-Valid-Until: no`` has the same effect.
        sha256: For Container-Optimized OS: checksums of its files, ``{
            "BUILD_ID/kernel-headers.tgz" = "…" }``. A file with a checksum may come from any
            mirror. Without it: the ``.md5`` file beside each file is used, and the mirror must
            begin with ``https://``.
    """

    mirror: Url | None = None
    security_mirror: Url | None = None
    keyring: str | None = None
    backports: bool = False
    snapshot: bool = False
    sha256: dict[str, Sha256] = Field(default_factory=dict)


class RepositoryConfig(Frozen):
    """A repository of packages that is used instead of those that a base image names.

    Attributes:
        id: A word that names the repository in messages and Pins.
        urls: Its addresses, which are mirrors of each other.
        keys: Files with the keys that sign its packages, as absolute paths, in ASCII armour.
            Without it: the distro's own keys in the base image.
        version: The release that it serves, such as ``"9"``; ``"9.4"`` is one of 9. Without it:
            every release.
        signed: Whether its index must be signed too (``repomd.xml.asc``), with one of ``keys``.
            Without it: ``true`` for openSUSE and SLES, ``false`` for the others, like their own
            repositories.
    """

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    urls: tuple[Url, ...] = Field(min_length=1)
    keys: tuple[AbsolutePath, ...] = ()
    version: str | None = None
    signed: bool | None = None

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if self.signed and not self.keys:
            raise ValueError('signed = true takes the keys that sign the index: keys = ["/path"]')
        return self


class DistroConfig(Frozen):
    """Settings of one distro, such as ``[distros.debian]``.

    Attributes:
        repositories: Repositories of packages, for the distros of dnf and zypper. Without it: those
            that the base image names.
        archive: The archive of packages, for the distros of apt.
        base_images: Base image by version: ``{ "12" = "debian:bookworm@sha256:…" }``; the digest
            is optional.
    """

    archive: ArchiveConfig = ArchiveConfig()
    repositories: tuple[RepositoryConfig, ...] = ()
    base_images: dict[str, BaseImage] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_each_repository_once(self) -> Self:
        seen: dict[str, set[str | None]] = {}
        for one in self.repositories:
            others = seen.setdefault(one.id, set())
            if others and (one.version is None or others & {None, one.version}):
                raise ValueError(
                    f"two repositories have the id '{one.id}': mirrors of one repository are all"
                    " in its 'urls', and others take an id of their own"
                )
            others.add(one.version)
        return self


class TreeConfig(Frozen):
    """A kernel tree, such as ``[[trees]]``: for kernels whose headers no distro packages.

    In paths, ``{kernel}`` stands for the kernel's release.

    Attributes:
        kernels: The releases that the tree serves, as a shell pattern: ``"6.6.74-*"``.
        kind: ``"source"``: the kernel's source, which the build configures and prepares;
            ``"prepared"``: the files that the kernel's own build left for external modules;
            ``"image"``: the same files in the base image, at ``/usr/lib/modules/KERNEL/build``.
        url: Address of the tar file; it needs ``sha256``. Without it: ``path`` says where the tree
            is.
        sha256: Checksum of the file at ``url``.
        path: The tar file on this host, or the folder of a prepared tree. If it lies below
            ``/usr``, the slot that boots next is searched too. Without it: ``url`` says where the
            tree is.
        config: The kernel's configuration, plain or gzip. Without it: ``/proc/config.gz`` for the
            kernel that runs, else ``/boot/config-KERNEL``; a prepared tree has its own.
        symvers: The kernel's ``Module.symvers``, plain or gzip. Without it:
            ``/boot/symvers-KERNEL.gz``, if it is there; a prepared tree has its own.
        toolchain: The distro whose compiler builds, such as ``"debian:12"``; ``"image"``: the base
            image has everything.
    """

    kernels: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._+~*?\[\]-]+$")]
    kind: Literal["source", "prepared", "image"] = "source"
    url: Url | None = None
    sha256: Sha256 | None = None
    path: AbsolutePath | None = None
    config: AbsolutePath | None = None
    symvers: AbsolutePath | None = None
    toolchain: Toolchain = "debian:12"

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if self.kind == "image":
            if self.url or self.path or self.config or self.symvers:
                raise ValueError(
                    "a tree in the base image has neither url, path, config nor symvers"
                )
            if self.toolchain != "image":
                raise ValueError("what is built in the base image's tree takes toolchain = 'image'")
            return self
        if (self.url is None) == (self.path is None):
            raise ValueError("give either url, with sha256, or path")
        if (self.url is None) != (self.sha256 is None):
            raise ValueError("url and sha256 belong together")
        return self
