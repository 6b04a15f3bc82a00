"""What tests of hosts share: an engine that builds, and a controller's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kit.debian import mirror, security_mirror
from kit.probe import need_programs

if TYPE_CHECKING:
    from pathlib import Path

    from kit.engine import Engine

# Where hosts see the folder with the socket of the engine that builds.
ENGINE = "/srv/engine"
# Engines as their admin has configured them. Docker could do no harm to this machine's network.
DAEMON = {
    "bridge": "none",
    "iptables": False,
    "ip6tables": False,
    "storage-driver": "vfs",
    "data-root": "/run/docker-data",
    "exec-opts": ["native.cgroupdriver=cgroupfs"],
    "runtimes": {"kata": {"path": "/opt/kata/bin/kata-runtime"}},
}
CONTAINERD = """\
version = 2
# by hand
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]
runtime_type = "io.containerd.kata.v2"
"""


@pytest.fixture(scope="session")
def engine(engine: Engine) -> Engine:
    """The engine that builds for hosts: they have none that can."""
    need_programs("podman", "ssh")
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
