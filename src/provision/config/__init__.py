"""``/etc/provision/provision.toml``: what this host should have, and with what it is built.

Every key is optional; a host without the file gets the defaults.
"""

from __future__ import annotations

from provision.config.build_settings import (
    ArchiveConfig,
    DistroConfig,
    EngineConfig,
    RepositoryConfig,
    TreeConfig,
)
from provision.config.driver_settings import DriverConfig, KeyConfig, PolicyConfig, SigningConfig
from provision.config.file import PATH, CdiConfig, Config, MetricsConfig, load
from provision.config.trust import RegistryConfig, TrustConfig, TrustRule

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
