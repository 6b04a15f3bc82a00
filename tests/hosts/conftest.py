"""What tests of hosts share: an engine that builds, and a controller's settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.debian import mirror, security_mirror
from kit.engine import Engine
from kit.probe import need_programs
from kit.registry import serving_registry
from kit.released import agent_image

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


def pushed(engine: Engine, image: str, name: str) -> str:
    """Push an image under a name of a registry; how hosts name it by its digest."""
    engine.docker("tag", image, name)
    found = re.search(r"digest: (sha256:[0-9a-f]{64})", engine.docker("push", name).stdout)
    assert found is not None
    return f"{name.rpartition(':')[0]}@{found[1]}"


@pytest.fixture(scope="session")
def agent(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The agent's image by its digest, in a registry that hosts reach."""
    folder = tmp_path_factory.mktemp("agent")
    archive = agent_image(engine, folder)
    loaded = engine.docker("load", "--quiet", "--input", archive).stdout.split()[-1]
    with serving_registry(tmp_path_factory.mktemp("registry")) as address:
        yield pushed(engine, loaded, f"{address}/agent:1")


def podman_files(agent: str) -> dict[str, str]:
    """What a host's podman needs to fetch an image of that registry, by path."""
    return {
        # Its own files lie in an overlay already.
        "/etc/containers/storage.conf": '[storage]\ndriver = "vfs"\n'
        'graphroot = "/var/lib/containers/storage"\nrunroot = "/run/containers/storage"\n',
        "/etc/containers/registries.conf.d/kit.conf": "[[registry]]\n"
        f'location = "{agent.partition("/")[0]}"\ninsecure = true\n',
    }
