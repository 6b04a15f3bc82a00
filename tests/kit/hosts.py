"""Hosts and containers that engine tests and the bench share, and what they are made from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.engine import Engine
from kit.kernels import kernels
from kit.podman import Podman
from kit.process import Completed
from kit.product import DISTRO, IMAGE, load_base

__all__ = [
    "DISTRO",
    "IMAGE",
    "NEW_KERNEL",
    "OLD_KERNEL",
    "SMALL_DRIVER",
    "Containers",
    "Host",
    "load_base",
]

OLD_KERNEL, NEW_KERNEL = kernels()
SMALL_DRIVER = "v4l2loopback"


@dataclass(frozen=True, slots=True)
class Host:
    """A host of its own below a folder: store, vendor configs, and what the shim reads."""

    root: Path
    # The shim's config.toml, the same file for every host of the session.
    config: Path

    @property
    def config_dir(self) -> Path:
        """Where vendor configs lie."""
        return self.root / "etc/oci-decorator/oci-decorator.d"

    def store(self, driver: str) -> Path:
        """The folder of a driver's store entries."""
        return self.root / "var/lib/provision" / driver

    def entry(self, driver: str) -> Path:
        """The store entry in use."""
        return (self.store(driver) / "current").resolve(strict=True)

    def vendor(self, driver: str) -> dict[str, Any]:
        """A vendor config as `provision install` wrote it."""
        document: dict[str, Any] = json.loads((self.config_dir / f"{driver}.json").read_text())
        return document

    def write_vendor(self, name: str, document: dict[str, Any] | str) -> Path:
        """A vendor config that an admin dropped in by hand."""
        self.config_dir.mkdir(parents=True, exist_ok=True)
        path = self.config_dir / f"{name}.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path


@dataclass(frozen=True, slots=True)
class Containers:
    """`docker run` and `podman run` with the runtime `oci-decorator`."""

    engine: Engine
    podman: Podman

    def docker(self, *words: str, flags: tuple[str, ...] = (), check: bool = True) -> Completed:
        """Run `words` in a Docker container of the base image."""
        argv = ["run", "--rm", "--runtime=oci-decorator", *flags, IMAGE, *words]
        return self.engine.docker(*argv, check=check)

    def in_podman(self, *words: str, flags: tuple[str, ...] = (), check: bool = True) -> Completed:
        """Run `words` in a podman container of the base image."""
        argv = ["--runtime=oci-decorator", "run", "--rm", *flags, IMAGE, *words]
        return self.podman(*argv, check=check)
