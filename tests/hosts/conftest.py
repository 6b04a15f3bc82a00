"""What tests of hosts share: an engine that builds, and a controller's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.debian import mirror, security_mirror
from kit.engine import Engine
from kit.hosts import load_base
from kit.probe import is_root, need, need_programs
from kit.product import DECORATOR, make_wheel
from kit.systemd import has_device_cgroups

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Where hosts see the folder with the socket of the engine that builds.
ENGINE = "/srv/engine"


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The engine that builds for hosts: they have none that can."""
    need(is_root(), "root", "run as root: engines and debootstrap want it")
    need_programs("podman", "runc", "debootstrap", "ssh", "dockerd", "containerd", "docker")
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    need(has_device_cgroups(), "device cgroups of version 1", "systemd in a container wants them")
    with Engine() as engine:
        load_base(engine)
        yield engine


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provision as it is now: a checkout may change while hosts are looked at."""
    return make_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def settings(wheel: Path) -> dict[str, Any]:
    """What an inventory says of all hosts, whatever they should have."""
    return {
        "provision_driver_source": str(wheel),
        "provision_driver_cache": str(wheel.parent / "bundles"),
    }


@pytest.fixture(scope="session")
def config() -> dict[str, Any]:
    """The part of `provision_driver_config` that is about this machine."""
    archive = {"mirror": mirror(), "security_mirror": security_mirror()}
    return {
        "engine": {"host": f"unix://{ENGINE}/docker.sock", "network": "host"},
        "distros": {"debian": {"archive": archive}},
    }
