"""What users of NVIDIA's toolkit type, unchanged, with links to our program in place of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.docker_in_tree import DockerInTree
from kit.hosts import DISTRO, IMAGE
from kit.nvidia_host import LIBRARIES, NvidiaHost, nodes, nvidia_host
from kit.probe import can_mount, need
from kit.product import base_archive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.engine import Engine
    from kit.process import Completed

_CONFIG = "/etc/nvidia-container-runtime/config.toml"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> NvidiaHost:
    """Our program, its links, its settings, and two GPUs' driver."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    machine = nvidia_host(tmp_path_factory.mktemp("gpus"))
    machine.link()
    return machine


@pytest.fixture(scope="module", params=["20.10", "26"])
def docker(
    request: pytest.FixtureRequest, engine: Engine, machine: NvidiaHost
) -> Iterator[DockerInTree]:
    """A Docker that knows nothing of us; the machine's own (Debian 12: 20.10), and Debian 13's."""
    archive = base_archive(engine, DISTRO)
    shown = (archive.parent, machine.folder)
    tree = Path("/") if request.param == "20.10" else None
    # What 26 has, and 20.10 refuses to know.
    settings = {} if request.param == "20.10" else {"features": {"cdi": True}}
    with DockerInTree(settings, shown, tree=tree, layer=machine.layer) as docker:
        docker("load", "--quiet", "--input", archive)
        docker.run("nvidia-ctk", "runtime", "configure", "--runtime=docker")
        docker.reload()
        yield docker


def _smi(docker: DockerInTree, *flags: str, check: bool = True) -> Completed:
    return docker("run", "--rm", *flags, IMAGE, "nvidia-smi", check=check)


def test_gpus_all(docker: DockerInTree) -> None:
    said = _smi(docker, "--gpus", "all").stdout.splitlines()
    everything = nodes("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
    assert sorted(said[:-2]) == sorted(everything)
    assert said[-2:] == LIBRARIES


def test_one_gpu_and_its_capabilities(docker: DockerInTree) -> None:
    said = _smi(docker, "--gpus", '"device=1","capabilities=utility"').stdout.splitlines()
    assert said == [*nodes("nvidia1", "nvidiactl"), "libnvidia-ml.so.1"]


def _set(docker: DockerInTree, *settings: str) -> None:
    """NVIDIA's own command for NVIDIA's own file, which the first call makes."""
    words = [word for setting in settings for word in ("--set", setting)]
    docker.run("nvidia-ctk", "config", "--in-place", *words)


@pytest.fixture
def settings(docker: DockerInTree) -> Iterator[None]:
    """NVIDIA's config.toml of this test only."""
    docker.run("mkdir", "-p", "/etc/nvidia-container-runtime")
    docker.run("nvidia-ctk", "config", "default", "--output", _CONFIG)
    yield
    docker.run("rm", "--recursive", "/etc/nvidia-container-runtime")


def test_by_uuid_with_the_runtime(docker: DockerInTree, machine: NvidiaHost) -> None:
    said = _smi(
        docker,
        "--runtime=nvidia",
        f"--env=NVIDIA_VISIBLE_DEVICES={machine.uuids[1]}",
        "--env=NVIDIA_DRIVER_CAPABILITIES=all",
    ).stdout.splitlines()
    assert said == [*nodes("nvidia-uvm", "nvidia1", "nvidiactl"), *LIBRARIES]


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("mode", ["auto", "legacy", "jit-cdi", "cdi"])
def test_the_flag_and_the_runtime_together_in_every_mode(
    docker: DockerInTree, machine: NvidiaHost, mode: str
) -> None:
    """What NVIDIA's own programs refuse; once each, however it got there."""
    # Specifications are looked for below the host's root, which is a folder here.
    docker.run("nvidia-ctk", "cdi", "generate", f"--output={machine.cdi_file}")
    _set(docker, f"nvidia-container-runtime.mode={mode}")
    shell = "nvidia-smi; grep -c libcuda /proc/self/mountinfo"
    flags = ("--runtime=nvidia", "--gpus", "device=1")
    done = docker("run", "--rm", *flags, IMAGE, "sh", "-c", shell)
    given = nodes("nvidia-uvm", "nvidia1", "nvidiactl")
    assert done.stdout.splitlines() == [*given, *LIBRARIES, "1"]


def test_nothing_is_given_that_is_not_asked_for(docker: DockerInTree) -> None:
    shell = "ls /dev/nvidia* 2>/dev/null; ldconfig -p | grep -e libcuda; true"
    done = docker("run", "--rm", "--runtime=nvidia", IMAGE, "sh", "-c", shell)
    assert done.stdout == ""


_RUNTIME = "--runtime=nvidia"
_ALL = "NVIDIA_VISIBLE_DEVICES=all"


@pytest.mark.parametrize(
    ("way", "variables", "reason"),
    [
        (_RUNTIME, ("NVIDIA_VISIBLE_DEVICES=7",), "NVIDIA_VISIBLE_DEVICES"),
        (_RUNTIME, ("NVIDIA_VISIBLE_DEVICES=GPU-9",), "GPU-9"),
        (_RUNTIME, (_ALL, "NVIDIA_DRIVER_CAPABILITIES=fly"), "fly"),
        (_RUNTIME, (_ALL, "NVIDIA_REQUIRE_CUDA=cuda>=99.0"), "cuda>=99.0"),
        # Docker sets the other two by itself.
        ("--gpus=all", ("NVIDIA_REQUIRE_CUDA=cuda>=99.0",), "cuda>=99.0"),
        ("--gpus=device=7", (), "NVIDIA_VISIBLE_DEVICES"),
    ],
)
def test_a_refusal_says_which_variable(
    docker: DockerInTree, way: str, variables: tuple[str, ...], reason: str
) -> None:
    refused = _smi(docker, way, *(f"--env={variable}" for variable in variables), check=False)
    assert refused.returncode != 0
    assert reason in refused.stderr


def test_a_restarted_container_has_its_gpu(docker: DockerInTree) -> None:
    name = ("--name", "kept")
    first = docker("run", *name, "--gpus", "device=0", IMAGE, "nvidia-smi").stdout
    try:
        again = docker("start", "--attach", "kept").stdout
    finally:
        docker("rm", "--force", "kept")
    assert again == first
    assert "/dev/nvidia0" in first


@pytest.mark.parametrize("docker", ["26"], indirect=True)  # 20.10 has no CDI
def test_cdi_by_nvidias_generator(docker: DockerInTree, machine: NvidiaHost) -> None:
    docker.run("nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml")
    listed = docker.run("nvidia-ctk", "cdi", "list", "--spec-dir=/etc/cdi", "--root=/")
    names = {f"nvidia.com/gpu={name}" for name in ("0", "1", *machine.uuids, "all")}
    assert names <= set(listed.stdout.split())
    for name, node in (("0", "nvidia0"), (machine.uuids[1], "nvidia1")):
        said = _smi(docker, "--device", f"nvidia.com/gpu={name}").stdout.splitlines()
        assert said == [*nodes("nvidia-uvm", node, "nvidiactl"), *LIBRARIES]
    refused = _smi(docker, "--device", "nvidia.com/gpu=9", check=False)
    assert refused.returncode != 0
    assert "nvidia.com/gpu=9" in refused.stderr
