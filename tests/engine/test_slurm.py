"""Jobs of Slurm: the manual's script, with the environment that `slurmd` gives a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kit.bundles import Bundle
from kit.cache import REPOSITORY
from kit.docker_in_tree import DockerInTree
from kit.hosts import DISTRO, IMAGE
from kit.manual import snippet
from kit.nvidia_host import LIBRARIES, NvidiaHost, nodes, nvidia_host
from kit.podman import Podman
from kit.probe import can_mount, need, need_programs
from kit.product import base_archive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.engine import Engine
    from kit.process import Completed

_PAGE = "how-to/hpc.md"
_HOOK = REPOSITORY / "hooks/sarus/20-oci-decorator-prestart.json"
# `slurmd` as far as a step sees it: variables of its own, and none of the user's about GPUs.
_SRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
. /etc/slurm/step
export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NODEID=0 SLURM_PROCID=0
exec "$@"
"""
# What the container has: nodes, the loader's view, and the variables about devices.
_REPORT = "nvidia-smi; env | grep -E '^(CUDA|NVIDIA)_' | sort"
_IMAGE_ASKS = ("NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=0,1")
_CONTROL = ("nvidiactl", "nvidia-uvm")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> NvidiaHost:
    """A node of a cluster with four GPUs, our links, and an `srun`."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    need_programs("podman")
    machine = nvidia_host(tmp_path_factory.mktemp("node"), gpus=4)
    machine.link()
    srun = machine.layer / "usr/local/bin/srun"
    srun.parent.mkdir(parents=True)
    srun.write_text(_SRUN)
    srun.chmod(0o755)
    settings = machine.layer / "etc/oci-decorator"
    (settings / "slurm.toml").write_text(
        snippet(_PAGE, "## The setting `scheduler`") + (settings / "config.toml").read_text()
    )
    # Settings that are in the page, on the same host.
    own = snippet(_PAGE, "`/etc/oci-decorator/sarus.toml`")
    (settings / "sarus.toml").write_text(own + (settings / "config.toml").read_text())
    return machine


@pytest.fixture(scope="module")
def podman(engine: Engine) -> Iterator[Podman]:
    """A podman with the base image; the job's `podman` is it."""
    with Podman() as podman:
        podman.load(base_archive(engine, DISTRO))
        yield podman


@pytest.fixture(scope="module")
def node(
    engine: Engine, machine: NvidiaHost, podman: Podman, base_root: Path
) -> Iterator[DockerInTree]:
    """The node, with a Docker that was set up by NVIDIA's command."""
    machine.add_podman(podman)
    archive = base_archive(engine, DISTRO)
    shown = (archive.parent, machine.folder, podman.folder, base_root)
    with DockerInTree({}, shown, tree=Path("/"), layer=machine.layer) as docker:
        docker("load", "--quiet", "--input", archive)
        docker.run("mkdir", "-p", "/etc/slurm")
        docker.run("nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml")
        yield docker


def _step(node: DockerInTree, **variables: str) -> None:
    """Say what `slurmd` sets for the next steps."""
    lines = "".join(f"export {name}={value}\n" for name, value in variables.items())
    node.run("sh", "-c", 'printf %s "$1" >/etc/slurm/step', "sh", lines)


def _job(node: DockerInTree, line: str, *, check: bool = True, **replace: str) -> Completed:
    """Run a line of the manual's job."""
    script = snippet(_PAGE, "## A job")
    (found,) = [row for row in script.splitlines() if row.startswith("srun") and line in row]
    for word, value in replace.items():
        found = found.replace(word, value)
    socket = f"DOCKER_HOST=unix://{node.folder}/docker.sock"
    return node.run("env", socket, "sh", "-c", found, check=check)


@pytest.mark.parametrize("engine_line", ["docker run", "podman run"])
@pytest.mark.parametrize("for_cuda", ["0,1", "1,3"], ids=["constrained", "unconstrained"])
def test_an_engine_gives_what_the_step_has(
    node: DockerInTree, engine_line: str, for_cuda: str
) -> None:
    """With `ConstrainDevices`, CUDA's variable counts from 0, and is no number of the host's."""
    _step(node, SLURM_STEP_GPUS="1,3", CUDA_VISIBLE_DEVICES=for_cuda)
    said = _job(node, engine_line, IMAGE=IMAGE).stdout.splitlines()
    assert said == [*nodes("nvidia1", "nvidia3", *_CONTROL), *LIBRARIES]


@pytest.fixture
def bundle(node: DockerInTree, base_root: Path, tmp_path: Path) -> Iterator[Bundle]:
    """A bundle of the job, whose root is mounted where the node's programs run."""
    folder = node.folder / "bundles" / tmp_path.name
    parts = {name: folder / name for name in ("upper", "work", "root")}
    for part in parts.values():
        part.mkdir(parents=True)
    options = f"lowerdir={base_root},upperdir={parts['upper']},workdir={parts['work']}"
    node.run("mount", "-t", "overlay", "-o", options, "overlay", parts["root"])
    yield Bundle(folder)
    node.run("umount", parts["root"])


def _started(node: DockerInTree, bundle: Bundle, report: str) -> list[str]:
    """What the container of the job's last line says, whose image asks for everything."""
    bundle.write("sh", "-c", report, env=_IMAGE_ASKS, root=bundle.folder / "root")
    words = {"run --bundle BUNDLE": f"--root {bundle.state} run --bundle {bundle.folder}"}
    job = snippet(_PAGE, "## A job", words).splitlines()
    assert job[-2].startswith("export OCI_DECORATOR_CONFIG=")
    return node.run("sh", "-c", "\n".join(job[-2:])).stdout.splitlines()


@pytest.mark.parametrize(
    ("given", "units", "cuda"),
    [
        ("1", ["nvidia1"], "0"),
        ("2,3", ["nvidia2", "nvidia3"], "0,1"),
        ("3,1", ["nvidia1", "nvidia3"], "1,0"),
    ],
)
def test_a_runtime_of_the_job(
    node: DockerInTree, bundle: Bundle, given: str, units: list[str], cuda: str
) -> None:
    _step(node, SLURM_STEP_GPUS=given, CUDA_VISIBLE_DEVICES="0")
    assert _started(node, bundle, _REPORT) == [
        *nodes(*units, *_CONTROL),
        *LIBRARIES,
        f"CUDA_VISIBLE_DEVICES={cuda}",
        "NVIDIA_DRIVER_CAPABILITIES=all",
        f"NVIDIA_VISIBLE_DEVICES={given}",
    ]


@pytest.mark.parametrize("given", ["NoDevFiles", ""])
def test_a_job_without_gpus_has_none(node: DockerInTree, bundle: Bundle, given: str) -> None:
    _step(node, SLURM_STEP_GPUS=given)
    # There is no nvidia-smi either.
    report = "ls /dev/nvidia* 2>/dev/null; env | grep -E '^(CUDA|NVIDIA)_'; true"
    assert _started(node, bundle, report) == []


@pytest.mark.parametrize(
    "words",
    [
        None,
        ["nvidia-container-runtime-hook", "-config=/etc/nvidia.toml", "prestart"],
    ],
    ids=["ours", "NVIDIA's name"],
)
def test_sarus(node: DockerInTree, bundle: Bundle, words: list[str] | None) -> None:
    """A bundle as Sarus writes it: its own numbering, and the hook at the end of its file."""
    node.run("nvidia-ctk", "config", "default", "--output", "/etc/nvidia.toml")
    hook = json.loads(_HOOK.read_text())["hook"]
    if words is not None:
        hook |= {"path": f"/usr/bin/{words[0]}", "args": words}

    def change(spec: dict[str, Any]) -> None:
        spec["hooks"] = {"prestart": [hook]}

    by_sarus = (
        "NVIDIA_VISIBLE_DEVICES=3,1",
        "CUDA_VISIBLE_DEVICES=1,0",
        "NVIDIA_DRIVER_CAPABILITIES=all",
    )
    root = bundle.folder / "root"
    bundle.write("sh", "-c", _REPORT, env=by_sarus, root=root, change=change)
    _step(node, SLURM_STEP_GPUS="1,3", CUDA_VISIBLE_DEVICES="3,1")
    start = ("runc", "--root", bundle.state, "run", "--bundle", bundle.folder, "job")
    said = node.run("srun", "--gres=gpu:2", *start).stdout.splitlines()
    assert said == [*nodes("nvidia1", "nvidia3", *_CONTROL), *LIBRARIES, *sorted(by_sarus)]


def test_sarus_of_a_job_without_gpus(node: DockerInTree, bundle: Bundle) -> None:
    hook = json.loads(_HOOK.read_text())["hook"]

    def change(spec: dict[str, Any]) -> None:
        spec["hooks"] = {"prestart": [hook]}

    root = bundle.folder / "root"
    bundle.write("sh", "-c", "ls /dev", root=root, change=change)
    start = ("runc", "--root", bundle.state, "run", "--bundle", bundle.folder, "job")
    assert "nvidia" not in node.run(*start).stdout
