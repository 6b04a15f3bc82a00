"""What tests of hosts share: an engine that builds, and a controller's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.debian import mirror, security_mirror
from kit.probe import need, need_programs
from kit.systemd import has_device_cgroups

if TYPE_CHECKING:
    from pathlib import Path

    from kit.engine import Engine

# Where hosts see the folder with the socket of the engine that builds.
ENGINE = "/srv/engine"


@pytest.fixture(scope="session")
def engine(engine: Engine) -> Engine:
    """The engine that builds for hosts: they have none that can."""
    need_programs("podman", "ssh")
    need(has_device_cgroups(), "device cgroups of version 1", "systemd in a container wants them")
    return engine


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
