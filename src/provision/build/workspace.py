"""The inputs of every step: a host, its configuration, the catalogue, a folder for state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provision.build.network_access import use_proxies
from provision.catalogue import Catalogue, catalogue_folders
from provision.config import Config, load
from provision.distros.debian import ArchiveAccess, default_cache
from provision.progress import Progress


@dataclass(frozen=True, slots=True)
class Settings:
    """Inputs that all steps share.

    Attributes:
        root: Root of the host.
        config: Its provision.toml.
        catalogue: The drivers.
        state: Folder for locks, logs and caches; losing it costs time, nothing else.
        usr: A /usr that boots next, where it is mounted.
    """

    root: Path
    config: Config
    catalogue: Catalogue
    state: Path = field(default_factory=default_cache)
    usr: Path | None = None

    def archives(self, progress: Progress) -> ArchiveAccess:
        """Return how this host reads archives of Debian's kind."""
        return ArchiveAccess(self.config, self.root, self.state, progress)


def load_settings(root: Path = Path("/"), *, catalogues: Sequence[Path] = ()) -> Settings:
    """Read a host's configuration.

    Args:
        root: Root of the host.
        catalogues: Further folders of drivers, which mask those of the configuration.

    Raises:
        ConfigError: provision.toml has mistakes; all of them are named.
        NotFoundError: provision's own catalogue is missing.
    """
    root = root.resolve()
    config = load(root)
    use_proxies(config.network)
    folders = [*catalogue_folders(config.catalogue, root=root), *catalogues]
    return Settings(root=root, config=config, catalogue=Catalogue(folders))
