"""``/etc/provision/provision.toml``: what this host should have, and with what it is built.

Every key is optional; a host without the file gets the defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from provision.config.build_settings import (
    ArchiveConfig,
    DistroConfig,
    EngineConfig,
    RepositoryConfig,
    TreeConfig,
)
from provision.config.driver_settings import (
    AbsolutePath,
    DriverConfig,
    KeyConfig,
    PolicyConfig,
    SigningConfig,
)
from provision.config.trust import RegistryConfig, TrustConfig, TrustRule
from provision.documents import Frozen, load_toml
from provision.files import in_root
from provision.pin import Name

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


class MetricsConfig(Frozen):
    """Where metrics are written.

    Attributes:
        textfile: File that the node exporter's textfile collector reads. Without it:
            ``provision.prom`` in the exporter's folder (``/var/lib/prometheus/node-exporter``,
            ``/var/lib/node_exporter/textfile_collector``), if the host has one.
    """

    textfile: AbsolutePath | None = None


class CdiConfig(Frozen):
    """Specifications of the Container Device Interface, for ``--device`` of engines.

    Attributes:
        generate: Whether the units write CDI specifications to ``/run/cdi``, at boot and when
            drivers change ([how](../how-to/configure-an-engine.md#cdi)); takes effect with
            ``provision units``.
    """

    generate: bool = True


class Config(Frozen):
    """A provision.toml.

    Attributes:
        kernel_distro: ``ID:VERSION`` of the distro that the host's kernels come from, where that is
            not the one that its os-release names. Without it: the host's own.
        catalogue: Further folders of driver folders, as absolute paths; a driver in one of them
            masks one of provision's own. Without it: provision's own only.
        trees: Kernel trees; of those that are for a kernel, the first counts.
    """

    drivers: dict[Name, DriverConfig] = Field(default_factory=dict)
    policy: PolicyConfig = PolicyConfig()
    registry: RegistryConfig = RegistryConfig()
    trust: TrustConfig = TrustConfig()
    signing: SigningConfig = SigningConfig()
    metrics: MetricsConfig = MetricsConfig()
    cdi: CdiConfig = CdiConfig()
    engine: EngineConfig = EngineConfig()
    distros: dict[Name, DistroConfig] = Field(default_factory=dict)
    kernel_distro: KernelDistro | None = None
    catalogue: tuple[str, ...] = ()
    trees: tuple[TreeConfig, ...] = ()

    def distro(self, distro_id: str) -> DistroConfig:
        """Return the settings of a distro, defaults where the file has none."""
        return self.distros.get(distro_id, DistroConfig())


def load(root: Path = Path("/")) -> Config:
    """Read the configuration of the host under ``root``.

    Raises:
        ConfigError: The file has mistakes; all of them are named.
    """
    path = in_root(root, str(PATH))
    return load_toml(path, Config) if path.exists() else Config()
