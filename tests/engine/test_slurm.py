"""Jobs of a real Slurm: the manual's script, and what its containers find of the job's GPUs.

The node's GPUs, slurmctld, slurmd and munge are `kit.slurm`'s; nvidia-smi is real. Another job has
the first GPU throughout: a job's numbers are not those that CUDA counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.bundles import Bundle
from kit.cache import REPOSITORY
from kit.docker_in_tree import DockerInTree
from kit.engine import Engine
from kit.gpus import plain_gpus
from kit.hosts import DISTRO, IMAGE
from kit.nvidia_host import LIBRARIES, LIBRARY_FOLDER, REPORT, NvidiaHost, nvidia_host, uuids
from kit.pages import snippet
from kit.podman import Podman
from kit.probe import can_mount, need, need_programs
from kit.process import Completed
from kit.product import base_archive
from kit.slurm import Slurm, add_programs
from kit.standins import ALLOWED, DENIED

_PAGE = "how-to/hpc.md"
_HOOK = REPOSITORY / "hooks/sarus/20-oci-decorator-prestart.json"
_GPUS = plain_gpus(4)
_UUIDS = [gpu["uuid"] for gpu in _GPUS["devices"]]
_REPORT = f"{REPORT} env | grep -E '^(CUDA|NVIDIA)_' | sort"
_IMAGE_ASKS = ("NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=0,1")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> NvidiaHost:
    """A node of a cluster with four GPUs, our links, and Slurm's programs."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    need_programs("podman")
    machine = nvidia_host(tmp_path_factory.mktemp("node"), _GPUS)
    machine.link()
    add_programs(machine.layer)
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
        docker.run("nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml")
        yield docker


@pytest.fixture(scope="module", params=[False, True], ids=["unconstrained", "constrained"])
def slurm(
    request: pytest.FixtureRequest, node: DockerInTree, machine: NvidiaHost
) -> Iterator[Slurm]:
    """The cluster, whose first GPU is another job's; a constrained job can open only its own."""
    devices = machine.host.root / "dev"
    with Slurm(node, devices, len(_UUIDS), constrains=request.param) as slurm, slurm.taken(1):
        for_cuda = slurm("srun", "--gres=gpu:2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").stdout
        opened = slurm("srun", "--gres=gpu:2", "sh", "-c", f": <{devices}/nvidia3", check=False)
        if request.param:
            assert (for_cuda, DENIED in opened.stderr) == ("0,1\n", True)
        else:
            assert (for_cuda, ALLOWED in opened.stderr) == ("1,2\n", True)
        yield slurm


# In a constrained job of cgroups v1 the kernel refuses runc the rules that it writes: its cgroup
# would be below the job's, and name all devices.
_UNCONSTRAINED = pytest.mark.parametrize("slurm", [False], indirect=True, ids=["unconstrained"])


def _job(slurm: Slurm, node: DockerInTree, line: str, **replace: str) -> Completed:
    """Run a line of the manual's job."""
    script = snippet(_PAGE, "## A job")
    (found,) = [row for row in script.splitlines() if row.startswith("srun") and line in row]
    for word, value in replace.items():
        found = found.replace(word, value)
    return slurm("env", f"DOCKER_HOST=unix://{node.folder}/docker.sock", "sh", "-c", found)


@pytest.mark.parametrize("line", ["docker run", "podman run"])
def test_an_engine_gives_what_the_step_has(slurm: Slurm, node: DockerInTree, line: str) -> None:
    said = _job(slurm, node, line, IMAGE=IMAGE, **{"nvidia-smi": "nvidia-smi -L"}).stdout
    assert uuids(said) == _UUIDS[1:3]


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


def _start(slurm: Slurm, bundle: Bundle, report: str, *, gpus: str = "--gres=gpu:2") -> list[str]:
    """What the container of the job's last line says, whose image asks for everything."""
    bundle.write("sh", "-c", report, env=_IMAGE_ASKS, root=bundle.folder / "root")
    words = {"run --bundle BUNDLE": f"--root {bundle.state} run --bundle {bundle.folder}"}
    job = snippet(_PAGE, "## A job", words).splitlines()
    assert job[-2].startswith("export OCI_DECORATOR_CONFIG=")
    script = "\n".join(job[-2:]).replace("--gres=gpu:2", gpus)
    return slurm("sh", "-c", script).stdout.splitlines()


@_UNCONSTRAINED
def test_a_runtime_of_the_job(slurm: Slurm, bundle: Bundle) -> None:
    said = _start(slurm, bundle, _REPORT)
    assert uuids("\n".join(said)) == _UUIDS[1:3]
    assert said[2:] == [
        *LIBRARIES,
        "CUDA_VISIBLE_DEVICES=0,1",
        f"NVIDIA_CTK_LIBCUDA_DIR={LIBRARY_FOLDER}",
        "NVIDIA_DRIVER_CAPABILITIES=all",
        "NVIDIA_VISIBLE_DEVICES=1,2",
    ]


@_UNCONSTRAINED
def test_a_job_without_gpus_has_none(slurm: Slurm, bundle: Bundle) -> None:
    # There is no nvidia-smi either.
    report = "ls /dev/nvidia* 2>/dev/null; env | grep -E '^(CUDA|NVIDIA)_'; true"
    assert _start(slurm, bundle, report, gpus="") == []


@_UNCONSTRAINED
@pytest.mark.parametrize(
    "words",
    [
        None,
        ["nvidia-container-runtime-hook", "-config=/etc/nvidia.toml", "prestart"],
    ],
    ids=["ours", "NVIDIA's name"],
)
def test_sarus(slurm: Slurm, node: DockerInTree, bundle: Bundle, words: list[str] | None) -> None:
    """A bundle as Sarus writes it: its own numbering, and the hook at the end of its file."""
    node.run("nvidia-ctk", "config", "default", "--output", "/etc/nvidia.toml")
    hook = json.loads(_HOOK.read_text())["hook"]
    if words is not None:
        hook |= {"path": f"/usr/bin/{words[0]}", "args": words}
    by_sarus = ("NVIDIA_VISIBLE_DEVICES=2,1", "CUDA_VISIBLE_DEVICES=1,0")
    said = _hooked(slurm, bundle, hook, *by_sarus, "NVIDIA_DRIVER_CAPABILITIES=all")
    assert uuids("\n".join(said)) == _UUIDS[1:3]
    assert said[2:4] == LIBRARIES
    assert set(by_sarus) <= set(said)


@_UNCONSTRAINED
def test_sarus_of_a_job_without_gpus(slurm: Slurm, bundle: Bundle) -> None:
    hook = json.loads(_HOOK.read_text())["hook"]
    assert not [line for line in _hooked(slurm, bundle, hook) if "nvidia" in line.lower()]


def _hooked(slurm: Slurm, bundle: Bundle, hook: dict[str, Any], *env: str) -> list[str]:
    """What the container of a bundle with Sarus's hook says, run by runc in a job."""

    def change(spec: dict[str, Any]) -> None:
        spec["hooks"] = {"prestart": [hook]}

    report = f"ls -1 /dev | grep nvidia; {_REPORT}" if not env else _REPORT
    bundle.write("sh", "-c", report, env=env, root=bundle.folder / "root", change=change)
    start = ("runc", "--root", bundle.state, "run", "--bundle", bundle.folder, "job")
    said = slurm("srun", *(["--gres=gpu:2"] if env else []), *start, check=bool(env))
    return said.stdout.splitlines()
