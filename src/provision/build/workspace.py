"""The inputs of every step: a host, its configuration, the catalogue, a folder for state."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from provision.build.network_access import use_proxies
from provision.catalogue import Catalogue, catalogue_folders
from provision.config import Config, load
from provision.host.kernels import machine


def default_cache() -> Path:
    """Return the folder for caches: the system's for root, otherwise the user's.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):
        return Path(named, "provision")
    if os.geteuid() == 0:
        return Path("/var/cache/provision")
    return Path.home() / ".cache/provision"


@dataclass(frozen=True, slots=True)
class Settings:
    """Inputs that all steps share.

    Attributes:
        state: Folder for locks, logs and caches; losing it costs time, nothing else.
    """

    root: Path
    config: Config
    catalogue: Catalogue
    state: Path = field(default_factory=default_cache)
    architecture: str = field(default_factory=platform.machine)
    usr: Path | None = None

    def with_network(self, network: str | None) -> Settings:
        """Return these with another network of containers that download; None: the same."""
        if network is None:
            return self
        engine = self.config.engine.model_copy(update={"network": network})
        return replace(self, config=self.config.model_copy(update={"engine": engine}))


def load_settings(
    root: Path = Path("/"),
    *,
    catalogues: Sequence[Path] = (),
    architecture: str | None = None,
) -> Settings:
    """Read a host's configuration."""
    root = root.resolve()
    config = load(root)
    use_proxies(config.network)
    folders = [*catalogue_folders(config.catalogue, root=root), *catalogues]
    return Settings(
        root=root,
        config=config,
        catalogue=Catalogue(folders),
        architecture=architecture or machine(root),
    )
