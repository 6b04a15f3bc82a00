"""CDI in the two engines that read it: podman, and a Docker that is newer than Debian 12's."""

from __future__ import annotations

import json
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.docker_in_tree import DockerInTree
from kit.engine import Engine
from kit.hosts import DISTRO, IMAGE, Host
from kit.installed import Installed
from kit.pages import snippet
from kit.podman import Podman
from kit.probe import can_mount, need
from kit.process import Completed, run
from kit.product import DECORATOR, RUNTIME, base_archive
from kit.standins import ALLOWED, OPEN_NODES, stand_in

# What happens between the writing of the specification and the start.
Meanwhile = Callable[[], None] | None
# Flags of `run`, whether to fail the test when it fails, what runs in the container.
Start = Callable[..., Completed]

_PAGE = "how-to/configure-an-engine.md"
_VENDOR: dict[str, Any] = {
    "activation_flag": "OCI_GPU",
    "driver_feature": ["compute"],
    "cdi_kind": "example.com/gpu",
    "inventory": {
        "compute": {
            "devices": ["gpu0", "gpu1", "gpuctl"],
            "libraries": ["/opt/gpu/lib/libgpu.so.1"],
        },
        "tools": {"devices": ["gputool"], "binaries": ["/usr/bin/gpu-tool"]},
    },
}
_NODES = ("gpu0", "gpu1", "gpuctl", "gputool")
_REPORT = f"""
set --
for name in {" ".join(_NODES)}; do [ ! -e /dev/$name ] || set -- "$@" /dev/$name; done
{OPEN_NODES}
ldconfig -p | grep -o '/opt/.*'
cat /usr/bin/gpu-tool 2>/dev/null
true
"""
_LIBRARY = "/opt/gpu/lib/libgpu.so.1"
_TOOL = "/usr/bin/gpu-tool"


@pytest.fixture(scope="module")
def newer_docker(
    engine: Engine, shim_config: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DockerInTree]:
    """A Docker with CDI switched on as the manual says, and with our runtime."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    archive = base_archive(engine, DISTRO)
    # Hosts lie below pytest's folder, which has to look the same from in there.
    shown = (RUNTIME.parent, archive.parent, tmp_path_factory.getbasetemp())
    settings = json.loads(snippet(_PAGE, "without configuration. For Docker 25 to"))
    settings |= json.loads(snippet(_PAGE, "`/etc/docker/daemon.json`, then"))
    environment = {"OCI_DECORATOR_CONFIG": str(shim_config)}
    with DockerInTree(settings, shown, environment) as docker:
        docker("load", "--quiet", "--input", archive)
        yield docker


@pytest.fixture
def gpus(host: Host) -> Host:
    """A host with one vendor: two GPUs, a library, a tool with a node of its own."""
    stand_in(host, _VENDOR)
    host.write_vendor("gpu", _VENDOR)
    return host


def _generate(host: Host, output: Path) -> None:
    """The manual's command, for this host's root and vendor."""
    words = {"--vendor nvidia": "--vendor gpu", "/etc/cdi/nvidia.json": str(output)}
    argv = shlex.split(snippet(_PAGE, "On a host without units, write the inventory", words))
    run([DECORATOR, *argv[1:], "--root", host.root])


@pytest.fixture(params=["docker", "podman"])
def start(request: pytest.FixtureRequest, podman: Podman, gpus: Host, tmp_path: Path) -> Start:
    """How an engine that has our specification, and no other part of us, starts a container."""

    def in_docker(
        *flags: str, check: bool = True, shell: str = _REPORT, meanwhile: Meanwhile = None
    ) -> Completed:
        docker: DockerInTree = request.getfixturevalue("newer_docker")
        _generate(gpus, docker.cdi_dir / "gpu.json")
        if meanwhile:
            meanwhile()
        return docker("run", "--rm", *flags, IMAGE, "sh", "-c", shell, check=check)

    # This podman reads /etc/cdi and nothing else; the machine's own stays as it is.
    machine = Installed(tmp_path / "machine")

    def in_podman(
        *flags: str, check: bool = True, shell: str = _REPORT, meanwhile: Meanwhile = None
    ) -> Completed:
        folder = machine.layers / "etc/cdi"
        folder.mkdir(parents=True, exist_ok=True)
        _generate(gpus, folder / "gpu.json")
        if meanwhile:
            meanwhile()
        words = [*podman.command(), "run", "--rm", *flags, IMAGE, "sh", "-c", shell]
        return run(machine.command(words), env=podman.variables(), check=check)

    return in_docker if request.param == "docker" else in_podman


def _opened(*names: str) -> list[str]:
    return [f"/dev/{name}: {ALLOWED}" for name in names]


def test_a_device_is_had_by_its_name(start: Start) -> None:
    assert start().stdout == ""
    one = start("--device", "example.com/gpu=gpu1")
    assert one.stdout.splitlines() == [*_opened("gpu1", "gpuctl"), _LIBRARY]
    everything = start("--device", "example.com/gpu=all")
    assert everything.stdout.splitlines() == [
        *_opened(*_NODES),
        _LIBRARY,
        _TOOL,
    ]


def test_nodes_have_the_numbers_of_this_boot(start: Start, gpus: Host) -> None:
    """Not those of the boot in which the specification was written: another driver's by now."""
    node = gpus.root / "dev/gpu0"
    before = node.stat().st_rdev
    major, minor = os.major(before), os.minor(before) + 64

    def reboot() -> None:
        # Drivers get their numbers in another order.
        node.unlink(missing_ok=True)
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(major, minor))

    shell = f"stat -c '%t:%T %a' /dev/gpu0; set -- /dev/gpu0; {OPEN_NODES}"
    done = start("--device", "example.com/gpu=gpu0", shell=shell, meanwhile=reboot)
    assert done.stdout.splitlines() == [f"{major:x}:{minor:x} 666", *_opened("gpu0")]


def test_runtime_and_specification_together_give_the_same_once(
    newer_docker: DockerInTree, gpus: Host
) -> None:
    _generate(gpus, newer_docker.cdi_dir / "gpu.json")
    flags = ("--runtime=oci-decorator", "--env=OCI_GPU=all", "--device", "example.com/gpu=all")
    both = newer_docker(
        "run", "--rm", *flags, IMAGE, "sh", "-c", f"{_REPORT}\nmount | grep -c /opt/gpu"
    )
    expected = [*_opened(*_NODES), _LIBRARY, _TOOL, "1"]
    assert both.stdout.splitlines() == expected
