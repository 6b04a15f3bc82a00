"""Engines, host trees and builds that the engine tests share.

One private Docker engine and one podman a session. A build of NVIDIA's modules takes minutes, so
there is one a kernel; whoever needs a driver fast takes v4l2loopback.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kit.engine import Engine
from kit.podman import Podman
from kit.probe import is_root, need, need_programs
from kit.product import DECORATOR, RUNTIME, Provision, base_archive, write_runtime_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.process import Completed

DISTRO = "debian:12"
IMAGE = "debian:bookworm"
# pci_resize_resource() takes three arguments here, and four in the newest one
# (reference in driver_images/nvidia/driver.toml).
OLD_KERNEL = "6.1.0-47-amd64"
NEW_KERNEL = "6.1.0-56-amd64"
SMALL_DRIVER = "v4l2loopback"


@dataclass(frozen=True, slots=True)
class Host:
    """A host of its own below a folder: store, vendor configs, and what the shim reads.

    Attributes:
        root: the folder.
        config: the shim's config.toml, the same file for every host of the session.
    """

    root: Path
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


@pytest.fixture(scope="session")
def shim_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that OCI_DECORATOR_CONFIG names in both engines; `host` writes it."""
    return tmp_path_factory.mktemp("shim") / "config.toml"


@pytest.fixture(scope="session")
def engine(shim_config: Path) -> Iterator[Engine]:
    """A private Docker engine with the base image of DISTRO and our runtime."""
    need(is_root(), "root", "run as root: engines and debootstrap want it")
    need_programs("dockerd", "containerd", "docker", "runc", "debootstrap")
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    environment = {"OCI_DECORATOR_CONFIG": str(shim_config)}
    with Engine(runtimes={"oci-decorator": RUNTIME}, environment=environment) as engine:
        load_base(engine)
        yield engine


@pytest.fixture(scope="session")
def podman(engine: Engine, shim_config: Path) -> Iterator[Podman]:
    """A private podman with the same base image and runtime."""
    need_programs("podman")
    environment = {"OCI_DECORATOR_CONFIG": str(shim_config)}
    with Podman({"oci-decorator": RUNTIME}, environment) as podman:
        podman.load(base_archive(engine, DISTRO))
        yield podman


@pytest.fixture(scope="session")
def containers(engine: Engine, podman: Podman) -> Containers:
    """Both ways to start a container."""
    return Containers(engine, podman)


@pytest.fixture(scope="session")
def provision(engine: Engine) -> Provision:
    """The command `provision` with the private engine."""
    return Provision(engine.host)


@pytest.fixture
def host(tmp_path: Path, shim_config: Path) -> Host:
    """A fresh, empty host, which the shim reads from now on."""
    root = tmp_path / "host"
    root.mkdir()
    host = Host(root, shim_config)
    host.config_dir.mkdir(parents=True)
    write_runtime_config(shim_config, host.config_dir, root=root)
    return host


@pytest.fixture(scope="session")
def small_build(provision: Provision) -> dict[str, Any]:
    """What `provision build` says about the small driver on OLD_KERNEL: built in seconds."""
    return provision.json("build", SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)


@pytest.fixture(scope="session")
def nvidia_build(provision: Provision) -> dict[str, Any]:
    """NVIDIA's open modules on OLD_KERNEL, and the user space: minutes."""
    return provision.json("build", "nvidia", "--kernel", OLD_KERNEL, "--distro", DISTRO)


def load_base(engine: Engine) -> None:
    """Have the base image in an engine."""
    archive = base_archive(engine, DISTRO)
    if IMAGE not in engine.images():
        engine.docker("load", "--quiet", "--input", archive)
