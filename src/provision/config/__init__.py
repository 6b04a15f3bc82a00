"""``/etc/provision/provision.toml``: what this host should have, and with what it is built.

Every key is optional; a host without the file gets the defaults.
"""

from __future__ import annotations

from provision.config.build import ArchiveConfig, DistroConfig, EngineConfig
from provision.config.drivers import DriverConfig, PolicyConfig, RegistryConfig, SigningConfig
from provision.config.file import PATH, Config, MetricsConfig, load

__all__ = [
    "PATH",
    "ArchiveConfig",
    "Config",
    "DistroConfig",
    "DriverConfig",
    "EngineConfig",
    "MetricsConfig",
    "PolicyConfig",
    "RegistryConfig",
    "SigningConfig",
    "load",
]
