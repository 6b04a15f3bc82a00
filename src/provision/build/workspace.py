"""The inputs of every step: a host, its configuration, the catalogue, a folder for state."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from provision.catalogue import Catalogue
from provision.config import Config, NetworkConfig, catalogue_folders, load
from provision.host.facts import HostFacts, PciDevice, pci_devices, read_facts
from provision.host.kernels import machine

if TYPE_CHECKING:
    from provision.engine.docker_api import Engine


# Source: https://docs.docker.com/reference/dockerfile/#predefined-args
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@contextmanager
def proxies_used(network: NetworkConfig) -> Iterator[None]:
    """Let this process, its programs and its containers use the proxy that provision.toml names.

    It replaces all proxies of the environment: a shell then does what the units do. requests, the
    Docker SDK, skopeo, dnf, zypper and wget all take the proxy from there.
    """
    variables = network.variables()
    names = (*_PROXIES, "all_proxy", "ALL_PROXY") if variables else ()
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


def proxies() -> dict[str, str]:
    """Return the variables of this process's environment that name proxies."""
    return {name: os.environ[name] for name in _PROXIES if name in os.environ}


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


def _connect(host: str | None) -> Engine:
    from provision.engine.docker_api import connect  # noqa: PLC0415 - most commands need none

    return connect(host)


@dataclass(slots=True)
class EngineConnection:
    """The connection to a container engine, which is made at its first use."""

    connect: Callable[[str | None], Engine] = _connect
    _engine: Engine | None = None

    def to(self, host: str | None) -> Engine:
        """Return the engine at an address."""
        if self._engine is None:
            self._engine = self.connect(host)
        return self._engine

    def close(self) -> None:
        """Close it; its next use opens it again."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


@dataclass(frozen=True)
class Settings:
    """Inputs that all steps share."""

    root: Path
    config: Config
    catalogue: Catalogue
    # Folder for locks, logs and caches; losing it costs time, nothing else.
    state: Path = field(default_factory=default_cache)
    architecture: str = field(default_factory=platform.machine)
    usr: Path | None = None
    connection: EngineConnection = field(default_factory=EngineConnection, compare=False)

    @cached_property
    def facts(self) -> HostFacts:
        """The facts of the host, read once."""
        return read_facts(self.root)

    @cached_property
    def pci(self) -> tuple[PciDevice, ...]:
        """The PCI devices of the host, read once; a root that is no whole host has none."""
        return pci_devices(self.root)

    @contextmanager
    def connected(self) -> Iterator[Settings]:
        """Use the host's proxy meanwhile, and close the connection to the engine at the end."""
        with proxies_used(self.config.network), closing(self.connection):
            yield self

    def engine(self) -> Engine:
        """Return the container engine."""
        engine = self.connection.to(self.config.engine.host)
        engine.cpu_shares = self.config.engine.cpu_shares
        return engine

    def with_network(self, network: str | None) -> Settings:
        """Return these with another network of containers that download; None: the same."""
        if network is None:
            return self
        engine = self.config.engine.model_copy(update={"network": network})
        return replace(self, config=self.config.model_copy(update={"engine": engine}))


def load_settings(
    root: Path = Path("/"),
    *,
    config: Config | None = None,
    catalogues: Sequence[Path] = (),
    architecture: str | None = None,
) -> Settings:
    """Return a host's settings; without its configuration, that is read."""
    root = root.resolve()
    config = config or load(root)
    ours, *settled = catalogue_folders(config.catalogue, root=root)
    return Settings(
        root=root,
        config=config,
        catalogue=Catalogue([ours, *settled, *catalogues], settled),
        architecture=architecture or machine(root),
    )
