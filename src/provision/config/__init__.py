"""``/etc/provision/provision.toml``: what this host should have, and with what it is built.

Every key is optional; a host without the file gets the defaults.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from provision.config.build_settings import (
    ArchiveConfig,
    DistroConfig,
    EngineConfig,
    NetworkConfig,
    RepositoryConfig,
    TreeConfig,
)
from provision.config.trust import (
    KeyConfig,
    RegistryConfig,
    SigningConfig,
    TrustConfig,
    TrustRule,
)
from provision.documents import Frozen, load_toml
from provision.files import in_root
from provision.pin import AbsolutePath, Name, Version

__all__ = [
    "PATH",
    "ArchiveConfig",
    "CdiConfig",
    "Config",
    "DistroConfig",
    "DriverConfig",
    "EngineConfig",
    "KeyConfig",
    "MetricsConfig",
    "NetworkConfig",
    "PolicyConfig",
    "RegistryConfig",
    "RepositoryConfig",
    "SigningConfig",
    "TreeConfig",
    "TrustConfig",
    "TrustRule",
    "load",
]

PATH = Path("etc/provision/provision.toml")

KernelDistro = Annotated[str, StringConstraints(pattern=r"^[a-z0-9._-]+:[A-Za-z0-9._-]+$")]


def _parameter(value: object) -> object:
    if isinstance(value, bool):
        return "Y" if value else "N"
    return str(value) if isinstance(value, int) else value


# What the kernel takes as names: C identifiers; modprobe takes '-' for '_' in a module's.
ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*$")]
ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/: with a prefix, because
# those without one belong to the cluster's users.
LabelName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9][a-z0-9.-]{0,252}/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
    ),
]
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


class DriverConfig(Frozen):
    """One driver that the host should have, such as ``[drivers.nvidia]``.

    Attributes:
        version: A kind of branch (``"production"``, ``"lts"``, ``"new-feature"``), for the newest
            version in branches that the vendor supports; a branch (``"580"``, ``"0.12"``), for its
            newest version that suits the kernel; one version (``"0.12.7"``); or ``"latest"``. A
            driver whose branches have no kinds has its newest version for ``"production"``.
        flavour: One of the driver's flavours. Without it: its default.
        options: Parameters of its modules: ``{ MODULE = { NAME = VALUE } }``, where VALUE is text,
            a number or a boolean. They take effect at the next load after ``provision apply`` and
            change no artifact. Without it: none.
    """

    version: Version = "production"
    flavour: Name | None = None
    options: dict[ModuleName, dict[ParameterName, Parameter]] = Field(default_factory=dict)


class PolicyConfig(Frozen):
    """What may be done without asking.

    Attributes:
        unload: ``"idle"`` unloads modules that are not in use when newer ones are ready;
            ``"never"`` leaves that to a reboot.
        prebuild: Whether the host makes artifacts for the kernels that may boot next, before they
            boot.
        keep: Number of older artifacts of each kernel that ``gc`` keeps for a rollback.
        update: ``"timer"`` lets ``provision-repeat.timer`` move ``latest``, branches and kinds of
            branches forward; with ``"never"`` they stay until an admin moves them.
        hold_updates: On Flatcar: whether an update of the system waits as long as a driver does not
            build for its kernel. It takes effect with ``provision units install``
            ([how](../how-to/coreos.md)).
        build: What happens if the registry lacks an artifact: ``"fallback"`` builds it here, and
            ``"never"`` reports it as missing (exit code 3). ``"always"`` builds everything here and
            does not query the registry.
    """

    unload: Literal["idle", "never"] = "idle"
    prebuild: bool = True
    keep: int = Field(default=1, ge=0)
    update: Literal["never", "timer"] = "never"
    hold_updates: bool = False
    build: Literal["never", "fallback", "always"] = "fallback"


class MetricsConfig(Frozen):
    """Where metrics are written.

    Attributes:
        textfile: File for the node exporter's textfile collector. Without it: ``provision.prom`` in
            the exporter's folder (``/var/lib/prometheus/node-exporter``,
            ``/var/lib/node_exporter/textfile_collector``), if the host has one.
    """

    textfile: AbsolutePath | None = None


class CdiConfig(Frozen):
    """Specifications of the Container Device Interface, for ``--device`` of engines.

    Attributes:
        generate: Whether the units write CDI specifications to ``/run/cdi``, at boot and when
            drivers change ([how](../how-to/configure-an-engine.md#cdi)). It takes effect with
            ``provision units install``.
    """

    generate: bool = True


class KubernetesConfig(Frozen):
    """What a node of a cluster says of itself, by Node Feature Discovery.

    Attributes:
        labels: What its labels begin with: a prefix that is yours, ``/``, and more if you like.
        gates: Labels that are ``false`` while a driver does not work, and else not there:
            ``{ LABEL = DRIVER }``. With ``{ "nvidia.com/gpu.deploy.operands" = "nvidia" }``,
            NVIDIA's GPU Operator leaves the node alone for as long. Without it: none.
    """

    labels: LabelName = "feature.node.kubernetes.io/provision"
    gates: dict[LabelName, Name] = Field(default_factory=dict)


class Config(Frozen):
    """A provision.toml.

    Attributes:
        kernel_distro: ``ID:VERSION`` of the distro that the host's kernels come from, where that is
            not the one that its os-release names. Without it: the host's own.
        catalogue: Further folders of driver folders, as absolute paths; a driver in one of them
            masks one of provision's own. Without it: provision's own only.
        trees: Kernel trees; of those that are for a kernel, the first counts.
    """

    described_in: ClassVar[str | None] = "docs/reference/provision-toml.md"

    drivers: dict[Name, DriverConfig] = Field(default_factory=dict)
    policy: PolicyConfig = PolicyConfig()
    registry: RegistryConfig = RegistryConfig()
    trust: TrustConfig = TrustConfig()
    signing: SigningConfig = SigningConfig()
    metrics: MetricsConfig = MetricsConfig()
    cdi: CdiConfig = CdiConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    engine: EngineConfig = EngineConfig()
    network: NetworkConfig = NetworkConfig()
    distros: dict[Name, DistroConfig] = Field(default_factory=dict)
    kernel_distro: KernelDistro | None = None
    catalogue: tuple[str, ...] = ()
    trees: tuple[TreeConfig, ...] = ()

    def distro(self, distro_id: str) -> DistroConfig:
        """Return the settings of a distro, defaults where the file has none."""
        return self.distros.get(distro_id, DistroConfig())


def load(root: Path = Path("/"), *, name: PurePath = PATH) -> Config:
    """Read the configuration of the host under ``root``: an empty one if there is no file."""
    path = in_root(root, name)
    return load_toml(path, Config) if path.exists() else Config()
