"""The tutorials' commands, line by line, on a machine that has neither card.

The host is a folder, so what would load modules or restart services is left out; each page says at
its end which of its commands are run here.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.agent_host import AgentHost
from kit.cache import REPOSITORY
from kit.engine import Engine
from kit.files import write
from kit.hosts import IMAGE, NEW_KERNEL, Host
from kit.pages import snippet
from kit.process import Completed, run
from kit.product import DECORATOR, Provision, write_runtime_config
from kit.standins import ALLOWED, OPEN_NODES, stand_in

pytestmark = pytest.mark.xdist_group("nvidia")

_NVIDIA = "tutorials/nvidia-docker-debian.md"
_ONLOAD = "tutorials/onload.md"
# The numbers are fixed: https://docs.kernel.org/admin-guide/devices.html
_NVIDIA_NODES = {"nvidia0": (195, 0), "nvidiactl": (195, 255)}
_NO_DRIVER = "couldn't communicate with the NVIDIA driver"
# What the command `onload` does in essence, and a `ping` that says how it was started.
_STAND_IN_ONLOAD = '#!/bin/sh\nLD_PRELOAD=libonload.so exec "$@"\n'
_STAND_IN_PING = (
    f'#!/bin/sh\necho "$LD_PRELOAD: $*"\nset -- /dev/onload /dev/sfc_char\n{OPEN_NODES}\n'
)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Someone who types what a page says, on a host that is a folder."""

    provision: Provision
    engine: Engine
    host: Host
    daemon: Path

    def type(self, block: str, *, check: bool = True) -> list[Completed]:
        """Run each line of a block of code; what restarts services is left out."""
        lines = [shlex.split(line, comments=True) for line in block.splitlines()]
        return [self._run(line, check=check) for line in lines if line and line[0] != "systemctl"]

    def _run(self, line: list[str], *, check: bool) -> Completed:
        program, *words = line
        if program == "provision":
            return self.provision(*words, "--root", self.host.root, check=check)
        if program == "docker":
            return self.engine.docker(*words, check=check)
        assert program == "oci-decorator", line
        if words[0] == "configure":
            more: list[str | Path] = ["--config", self.daemon]
        else:
            more = ["--root", self.host.root, "--config-dir", self.host.config_dir]
        return run([DECORATOR, *words, *more], check=check)


@pytest.fixture
def reader(provision: Provision, engine: Engine, shim_config: Path, tmp_path: Path) -> _Reader:
    """A reader whose host boots a Debian 12 kernel; the runtime of the engine reads that host."""
    root = AgentHost.make(tmp_path / "host", running=NEW_KERNEL).root
    host = Host(root, shim_config)
    write_runtime_config(shim_config, host.config_dir, root=root)
    return _Reader(provision, engine, host, tmp_path / "daemon.json")


@pytest.mark.nightly
def test_nvidia_docker_debian(reader: _Reader, nvidia_build: dict[str, Any]) -> None:
    facts, kernels = reader.type(snippet(_NVIDIA, "## 2."))
    assert NEW_KERNEL in facts.stdout
    assert NEW_KERNEL in kernels.stdout

    host = AgentHost(reader.host.root)
    # From Debian's packages: NVIDIA's server is not reached from here.
    host.configure(snippet(_NVIDIA, "## 3.", {"production": "latest"}))
    *_, applied, status = reader.type(snippet(_NVIDIA, "## 4."))
    assert reader.host.entry("nvidia").name == nvidia_build["image"].rpartition("-")[2]
    assert applied.returncode == 0
    assert "ready" in status.stdout

    reader.type(snippet(_NVIDIA, "## 5."))
    assert "oci-decorator" in json.loads(reader.daemon.read_text())["runtimes"]

    for name, (major, minor) in _NVIDIA_NODES.items():
        node = reader.host.root / "dev" / name
        node.parent.mkdir(exist_ok=True)
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
    checked, started = reader.type(snippet(_NVIDIA, "## 6."), check=False)
    assert checked.returncode == 0
    assert "nvidia-smi" in checked.stdout
    assert _NO_DRIVER in started.output


def test_onload(reader: _Reader, tmp_path: Path) -> None:
    vendor = json.loads((REPOSITORY / "hooks/vendors/oci-onload.json").read_text())
    write(reader.host.root / "usr/bin/onload", _STAND_IN_ONLOAD, 0o755)
    stand_in(reader.host, vendor)
    reader.host.write_vendor("onload", vendor)
    ping = write(tmp_path / "ping", _STAND_IN_PING, 0o755)

    *_, checked = reader.type(snippet(_ONLOAD, "## 3."))
    assert all(word in checked.stdout for word in ("/dev/onload_epoll", "/usr/bin/onload"))
    mounted = f"--volume {ping}:/usr/bin/ping:ro {IMAGE}"
    (pinged,) = reader.type(snippet(_ONLOAD, "## 4.", {"IMAGE": mounted}))
    assert pinged.stdout.splitlines() == [
        "libonload.so: -c 3 192.0.2.1",
        f"/dev/onload: {ALLOWED}",
        f"/dev/sfc_char: {ALLOWED}",
    ]
    assert "cannot be preloaded" not in pinged.stderr
