"""``/etc/provision/provision.toml``: what this host should have, and with what it is built.

Every key is optional; a host without the file gets the defaults.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import unquote

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    WithJsonSchema,
    model_validator,
)

from provision.documents import Frozen, default, like, load_toml
from provision.files import in_root, shipped
from provision.pin import AbsolutePath, Name, Sha256, Url, Version, host_and_port
from provision.trust import require_trusted


def _address(text: str) -> str:
    _, port = host_and_port(text)
    if port == 0:
        raise ValueError("0 is not a port")
    return text


EngineAddress = Annotated[
    str,
    like(r"^(unix|tcp|https?|ssh)://[^\s]+$", "unix:///run/docker.sock"),
    AfterValidator(_address),
]
ProxyAddress = Annotated[
    str, like(r"^https?://[^\s/]+/?$", "http://proxy.example:3128"), AfterValidator(_address)
]
# A name of an image, with its digest or without.
BaseImage = Annotated[
    str,
    like(r"^[a-z0-9][A-Za-z0-9._/:-]*(@sha256:[0-9a-f]{64})?$", "debian:bookworm"),
]
Toolchain = Annotated[str, like(r"^(image|[a-z0-9._-]+:[A-Za-z0-9._-]+)$", "debian:12")]


class EngineConfig(Frozen):
    """The container engine that builds.

    Attributes:
        host: Address of the engine's socket. Without it: ``DOCKER_HOST``, or the usual sockets.
        network: Network of the containers that download, as ``docker run --network`` takes it.
            Without it: the engine's default.
        jobs: Number of parallel compilers. Without it: one for each processor.
        cpu_shares: Weight of builds, as ``docker run --cpu-shares`` takes it; other containers have
            1024. An idle host's processors are all used. Docker's API has no weight of a build for
            disks.
    """

    host: EngineAddress | None = None
    network: str | None = None
    jobs: int | None = Field(default=None, ge=1)
    # The engine refuses other values: https://docs.docker.com/engine/containers/resource_constraints/
    cpu_shares: int = Field(default=256, ge=2, le=262144)


class NetworkConfig(Frozen):
    """How this host reaches servers: in units, in a shell and in the containers of builds.

    Authorities are not set here: those of the system count, in containers too. The container engine
    pulls base images by its own settings.

    Attributes:
        proxy: Address for ``http`` and ``https``, with user and password if needed; overrides the
            variables of a shell, which units do not have. One on this machine's loopback needs
            ``[engine] network = "host"`` for containers. Without it: ``https_proxy``,
            ``http_proxy`` and ``no_proxy``.
        no_proxy: Hosts and domains that are reached directly.
    """

    proxy: ProxyAddress | None = None
    no_proxy: tuple[Annotated[str, like(r"^[^\s,]+$", "intra.example")], ...] = ()

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
        mirror: ``http`` or ``https``. Without it: the machine's own apt configuration.
        security_mirror: Address of security updates. Without it, if ``mirror`` is set: Ubuntu: the
            same address; Debian: no security updates, with a warning.
        keyring: File with the keys that sign the index, binary or armored. Without it: the base
            image's own keyring of the distro.
        backports: Whether the release's backports are read too, for kernels such as
            6.12.9+bpo-amd64; other packages only if no other suite has them. Without it: if the
            machine's own apt configuration names them.
        snapshot: Whether the mirror keeps an old state on purpose: its index may have expired, or
            be older than the last. Without it: ``false``, or ``Check-Valid-Until: no`` of the
            machine's own apt configuration.
        sha256: For Container-Optimized OS: ``{ "BUILD_ID/kernel-headers.tgz" = "…" }``; such a file
            may come from any mirror. Without it: the ``.md5`` file beside each file, from a mirror
            with ``https://``.
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
        id: Its name in messages and Pins.
        urls: Addresses, mirrors of each other.
        keys: Files with the keys that sign its packages, absolute paths, in ASCII armour. Without
            it: the distro's own in the base image.
        version: The release that it serves: ``"9"``, or ``"9.4"`` of 9. Without it: every release.
        signed: Whether its index must be signed too (``repomd.xml.asc``). Without it: ``true`` for
            openSUSE and SLES, else ``false``, like their own repositories.
    """

    id: Annotated[str, like(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "some-name_1.2")]
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

    archive: ArchiveConfig = default(ArchiveConfig)
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
        kernels: Releases, as a shell pattern: ``"6.6.74-*"``.
        kind: ``"source"``: source, which the build configures and prepares; ``"prepared"``: what
            the kernel's own build left for external modules; ``"image"``: the same, in the base
            image at ``/usr/lib/modules/KERNEL/build``.
        url: Address of the tar file; needs ``sha256``. Without it: ``path``.
        sha256: Checksum of the file at ``url``.
        path: Tar file on this host, or folder of a prepared tree; below ``/usr``, the slot that
            boots next is searched too. Without it: ``url``.
        config: The kernel's configuration, plain or gzip. Without it: ``/proc/config.gz`` of the
            running kernel, else ``/boot/config-KERNEL``; a prepared tree may have its own.
        symvers: ``Module.symvers``, plain or gzip. Without it: ``/boot/symvers-KERNEL.gz`` if
            there; a prepared tree has its own.
        toolchain: The distro whose compiler builds (``"debian:12"``); ``"image"``: the base image
            has everything.
    """

    kernels: Annotated[str, like(r"^[A-Za-z0-9._+~*?\[\]-]+$", "6.6.74-*")]
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

    @staticmethod
    def filled(path: str, kernel: str) -> str:
        """Return a path of the tree for a kernel."""
        return path.replace("{kernel}", kernel)

    def read_from(self, kernel: str) -> tuple[str, ...]:
        """Return the paths of the host that the tree of a kernel is read from."""
        paths = (
            self.path,
            self.config or f"/boot/config-{kernel}",
            self.symvers or f"/boot/symvers-{kernel}.gz",
        )
        return tuple(self.filled(path, kernel) for path in paths if path)


_SCHEME = "pkcs11:"
# RFC 7512: pin-value, and pin-source, which may be a command.
_PINS = ("pin-value", "pin-source")


def _has_no_pin(address: str) -> str:
    # Decoded and in one case: readers of such addresses differ in what they take for the word.
    plain = unquote(address).lower()
    if address.startswith(_SCHEME) and any(name in plain for name in _PINS):
        raise ValueError(
            "says the token's PIN, which any user could then read in the list of processes, or"
            " where it is: take 'pin-value' and 'pin-source' out of it, and name a file that has"
            " the PIN ('pin_file')"
        )
    return address


KeyAddress = Annotated[
    str,
    like(r"^(/[^\x00\n]*|pkcs11:[^\s]+)$", "/etc/provision/key.pem or pkcs11:…"),
    AfterValidator(_has_no_pin),
]


class KeyConfig(Frozen):
    """A private key.

    Attributes:
        key: Private key: file, or PKCS#11 URI without a PIN. Without it: modules are not
            signed.
        pin_file: File whose first line is the passphrase or PIN. Without it: ``KBUILD_SIGN_PIN``.
    """

    key: KeyAddress | None = None
    pin_file: AbsolutePath | None = None

    @property
    def is_token(self) -> bool:
        """Whether the key is in a token."""
        return self.key is not None and self.key.startswith(_SCHEME)


class SigningConfig(KeyConfig):
    """The key that kernel modules are signed with; without one they are not signed.

    Attributes:
        certificate: The key's certificate, in PEM or DER; needs ``key``.
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
    like(
        r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$",
        "registry.example:5000/drivers",
    ),
    AfterValidator(_with_host),
]


class RegistryConfig(Frozen):
    """Where artifact images are pulled from before they are built.

    Attributes:
        address: ``host[:port][/prefix]``, from which
            ``ADDRESS/DRIVER:VERSION-FLAVOUR-KERNEL.DISTRO`` is pulled instead of built. Without it:
            nothing is pulled.
        mirrors: Addresses with the same images and signatures, asked first.
        folders: [Folders with images](../how-to/air-gap.md), searched before any registry.
        push: Whether the host pushes what it builds to ``address``; a failed push is only reported.
        sign_key: Private key for pushes and ``provision registry sign``: file, or PKCS#11 URI
            without a PIN. Without it: pushed images are not signed.
        sign_password_file: File whose first line is its password or PIN. Without it: the key has
            none.
        ca: File with the authorities of the registry's certificate. Without it: those of the
            system.
        plain_http: Whether there is no TLS; for this machine (``localhost``, ``127.…``) always,
            unless ``ca`` is set.
        auth_file: Credentials, in the format of Docker and podman. Without it: the files of root's
            ``docker login`` and ``podman login``.
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
    """The keys that images must be signed with.

    Attributes:
        keys: Folder of public keys (``*.pub``, ``*.pem``), or one file; one of them must have
            signed an image. Without it, if ``address`` is set: an error, and nothing is pulled.
        insecure: Whether unsigned images are installed: everyone who may push decides what the
            kernel loads, as ``status`` and ``doctor`` say. ``[signing]`` does not sign their
            modules, so a kernel that requires signatures refuses them.
        not_before: A day, such as ``2026-11-01``: earlier signatures (UTC) are refused, for fresh
            hosts without an earlier image to compare with. Without it: no such day.
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
    """The keys that images must be signed with, for everything and for parts of it.

    Attributes:
        registries: Other rules for a registry or a part of it, with the keys above:
            ``[trust.registries."registry.example:5000/tests"]``. The longest match applies.
        drivers: Other rules for a driver, before those of registries: ``[trust.drivers.nvidia]``.
    """

    registries: dict[RegistryAddress, TrustRule] = Field(default_factory=dict)
    drivers: dict[Name, TrustRule] = Field(default_factory=dict)

    def rule(self, repository: str, driver: str) -> TrustRule:
        """Return what counts for a driver of a repository, given with its registry."""
        if driver in self.drivers:
            return self.drivers[driver]
        fitting = [a for a in self.registries if f"{repository}/".startswith(f"{a}/")]
        return self.registries[max(fitting, key=len)] if fitting else self


PATH = Path("etc/provision/provision.toml")

KernelDistro = Annotated[str, like(r"^[a-z0-9._-]+:[A-Za-z0-9._-]+$", "debian:12")]


def _parameter(value: object) -> object:
    if isinstance(value, bool):
        return "Y" if value else "N"
    return str(value) if isinstance(value, int) else value


# What the kernel takes as names: C identifiers; modprobe takes '-' for '_' in a module's.
ModuleName = Annotated[str, like(r"^[A-Za-z0-9_][A-Za-z0-9_-]*$", "nvidia_drm")]
ParameterName = Annotated[str, like(r"^[A-Za-z_][A-Za-z0-9_]*$", "EXAMPLE_NAME")]
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/: with a prefix, because
# those without one belong to the cluster's users.
LabelName = Annotated[
    str,
    like(
        r"^[a-z0-9][a-z0-9.-]{0,252}/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
        "site.example/driver",
    ),
]
# Source: https://docs.kernel.org/admin-guide/kernel-parameters.html: values end at a blank.
# Booleans are Y and N there.
Parameter = Annotated[
    str,
    like(r"^[^\s\"]*$", "value-without-blanks"),
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


class DriverConfig(Frozen):
    """One driver that the host should have, such as ``[drivers.nvidia]``.

    Attributes:
        version: ``"auto"``; a kind of branch (``"production"``, ``"lts"``, ``"new-feature"``), a
            branch (``"580"``, ``"0.12"``): the newest version of it that suits kernel and cards;
            ``"latest"``: that of the recipe's first source for the distro (Debian: its archive),
            even of an ended branch; or one version (``"0.12.7"``).
        flavour: One of the driver's; ``"auto"``: its usual one, or another that all cards of the
            host need.
        options: Parameters of its modules: ``{ MODULE = { NAME = VALUE } }``, VALUE being text, a
            number or a boolean. They count at the next load after ``provision apply``.
    """

    version: Version = "auto"
    flavour: Name = "auto"
    options: dict[ModuleName, dict[ParameterName, Parameter]] = Field(default_factory=dict)


Untried = Literal["build", "refuse"]


class PolicyConfig(Frozen):
    """What may be done without asking.

    Attributes:
        unload: ``"idle"`` unloads idle modules when newer ones are ready; ``"never"`` leaves that
            to a reboot.
        prebuild: Whether artifacts are made for kernels that may boot next.
        trial: Whether their modules are first loaded in a virtual machine (``provision verify
            --boot``); ``true`` has QEMU in a container where none is installed. Without it: if QEMU
            and that kernel are installed.
        keep: Older artifacts of each kernel that ``gc`` keeps for a rollback.
        update: ``"timer"``: ``provision-repeat.timer`` moves ``latest``, branches and kinds of
            branches forward; ``"never"``: an admin does.
        hold_kernels: Whether the boot loader's default stays on the newest kernel [that has every
            driver](../how-to/keep-drivers-loaded.md#hold-a-kernel-until-its-drivers-are-ready). On
            Flatcar, [an update of the system waits](../how-to/coreos.md), after ``provision units
            install``.
        build: If the registry lacks an artifact: ``"fallback"`` builds it here, ``"never"`` reports
            it as missing (exit code 3). ``"always"`` builds all here, without a registry.
        untried: If nobody has [tried a version on a kernel](driver-toml.md#kernels): ``"build"``
            lets the compiler decide; ``"refuse"`` builds only what is known to work.
    """

    unload: Literal["idle", "never"] = "idle"
    prebuild: bool = True
    trial: bool | None = None
    keep: int = Field(default=1, ge=0)
    update: Literal["never", "timer"] = "never"
    hold_kernels: bool = False
    build: Literal["never", "fallback", "always"] = "fallback"
    untried: Untried = "build"

    @model_validator(mode="after")
    def _released_some_day(self) -> Self:
        if self.hold_kernels and not self.prebuild:
            raise ValueError(
                "'hold_kernels' needs 'prebuild': without it, no driver gets ready for a kernel"
                " before it boots"
            )
        return self


class MetricsConfig(Frozen):
    """Where metrics are written.

    Attributes:
        textfile: File for the node exporter's textfile collector. Without it: ``provision.prom`` in
            its folder (``/var/lib/prometheus/node-exporter``,
            ``/var/lib/node_exporter/textfile_collector``), if there.
    """

    textfile: AbsolutePath | None = None


class CdiConfig(Frozen):
    """Specifications of the Container Device Interface, for ``--device`` of engines.

    Attributes:
        generate: Whether the units write [CDI specifications](../how-to/configure-an-engine.md#cdi)
            to ``/run/cdi``, at boot and when drivers change; counts with ``provision units
            install``.
    """

    generate: bool = True


class KubernetesConfig(Frozen):
    """What a node of a cluster says of itself, by Node Feature Discovery.

    Attributes:
        labels: What its labels begin with: a prefix of yours, ``/``, and more if you like.
        gates: Labels that are ``false`` while a driver does not work, else absent: ``{ LABEL =
            DRIVER }``. With ``{ "nvidia.com/gpu.deploy.operands" = "nvidia" }``, NVIDIA's GPU
            Operator leaves the node alone for as long.
    """

    labels: LabelName = "feature.node.kubernetes.io/provision"
    gates: dict[LabelName, Name] = Field(default_factory=dict)


class Config(Frozen):
    """A provision.toml.

    Attributes:
        kernel_distro: ``ID:VERSION`` of the kernels' distro, where os-release names another.
            Without it: the host's own.
        catalogue: Further folders of driver folders, as absolute paths; a driver there masks
            provision's own. Without it: provision's own only.
        trees: Kernel trees; of those that are for a kernel, the first counts.
    """

    described_in: ClassVar[str | None] = "docs/reference/provision-toml.md"

    drivers: dict[Name, DriverConfig] = Field(default_factory=dict)
    policy: PolicyConfig = default(PolicyConfig)
    registry: RegistryConfig = default(RegistryConfig)
    trust: TrustConfig = default(TrustConfig)
    signing: SigningConfig = default(SigningConfig)
    metrics: MetricsConfig = default(MetricsConfig)
    cdi: CdiConfig = default(CdiConfig)
    kubernetes: KubernetesConfig = default(KubernetesConfig)
    engine: EngineConfig = default(EngineConfig)
    network: NetworkConfig = default(NetworkConfig)
    distros: dict[Name, DistroConfig] = Field(default_factory=dict)
    kernel_distro: KernelDistro | None = None
    catalogue: tuple[AbsolutePath, ...] = ()
    trees: tuple[TreeConfig, ...] = ()

    def distro(self, distro_id: str) -> DistroConfig:
        """Return the settings of a distro, defaults where the file has none."""
        return self.distros.get(distro_id, DistroConfig())

    @property
    def asks_registries(self) -> bool:
        """Whether an artifact may come from a registry."""
        is_set = bool(self.registry.addresses or self.registry.folders)
        return is_set and self.policy.build != "always"

    def tree_of(self, kernel: str) -> TreeConfig | None:
        """Return the tree for a kernel: the first of those that name it."""
        return next((tree for tree in self.trees if fnmatchcase(kernel, tree.kernels)), None)


def catalogue_folders(configured: Sequence[str] = (), *, root: Path = Path("/")) -> list[Path]:
    """Return the folders with driver folders; a driver in a later one masks an earlier one's."""
    return [shipped("driver_images"), *(in_root(root, folder) for folder in configured)]


def load(root: Path = Path("/"), *, name: PurePath = PATH) -> Config:
    """Read the configuration of the host under ``root``: an empty one if there is no file."""
    path = in_root(root, name)
    if not path.exists():
        return Config()
    require_trusted(path)
    return load_toml(path, Config)
