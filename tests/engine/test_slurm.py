"""Jobs of a real Slurm: the manual's script, and what its containers find of the job's GPUs.

Debian's Slurm runs on one node that isn't in any cluster: its programs lie on top of a
`DockerInTree`, so that the machine has none before and after, and write into a folder of its own.
nvidia-smi is real. Another job has the first GPU throughout: a job's numbers are not those that
CUDA counts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest

from kit.bundles import Bundle
from kit.cache import REPOSITORY, cached
from kit.docker_in_tree import DockerInTree
from kit.engine import Engine
from kit.gpus import plain_gpus
from kit.hosts import DISTRO, IMAGE
from kit.nvidia_host import LIBRARIES, LIBRARY_FOLDER, REPORT, NvidiaHost, nvidia_host, uuids
from kit.pages import snippet
from kit.podman import Podman
from kit.probe import can_mount, need, need_programs
from kit.process import Completed, Daemon, run
from kit.product import base_archive
from kit.registry import free_port
from kit.repackaged import download
from kit.standins import ALLOWED, DENIED

_PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge"]
# No limit of ours is handed on: to raise one needs CAP_SYS_RESOURCE.
_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin={task}
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
PropagateResourceLimits=NONE
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={gpus} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_DEVICES = Path("/sys/fs/cgroup/devices")
_CGROUP = """\
CgroupAutomount=no
CgroupPlugin=cgroup/v1
ConstrainDevices=yes
"""


def _add_programs(layer: Path) -> None:
    """Put Slurm's programs into a folder that will lie on top of the machine's own files."""

    def make(draft: Path) -> None:
        with TemporaryDirectory() as name:
            for deb in download(_suite(), _PACKAGES, Path(name)):
                package = deb.name.partition("_")[0]
                installed = run(["dpkg-query", "--show", package], check=False).returncode == 0
                if not installed:
                    run(["dpkg-deb", "--extract", deb, draft])
        # What update-alternatives does when they are installed.
        for program in draft.glob("usr/sbin/*-wlm"):
            program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)

    tree = cached(f"slurm-{_suite()}", make)
    # Not /etc, /run and /var: what is there is its configuration, which is ours here.
    shutil.copytree(tree / "usr", layer / "usr", symlinks=True, dirs_exist_ok=True)


def _suite() -> str:
    """The machine's own, as the programs use its libraries."""
    found = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


class Slurm:
    """A cluster of one node; `with Slurm(...) as slurm:` ends its daemons."""

    def __init__(self, node: DockerInTree, devices: Path, gpus: int, *, constrains: bool) -> None:
        """A node with `gpus` GPUs, whose nodes are `devices`/nvidia0 and so on.

        With `constrains`, a job may open its own GPUs only.
        """
        if constrains:
            # With the second version of cgroups, Slurm wants systemd for that.
            need(_DEVICES.is_dir(), "the cgroup controller of devices", "boot with cgroups v1")
        self._node = node
        self._devices = devices
        self._gpus = gpus
        self._constrains = constrains
        self._folder = node.folder / f"slurm-{constrains}"

    def __enter__(self) -> Self:
        """Start the daemons and wait for the node to be ready for jobs."""
        for name in ("state", "spool"):
            (self._folder / name).mkdir(parents=True)
        config = _CONFIG.format(
            name="node",
            host=socket.gethostname().partition(".")[0],
            controller=free_port(),
            node=free_port(),
            folder=self._folder,
            gpus=self._gpus,
            task="task/cgroup" if self._constrains else "task/none",
        )
        (self._folder / "slurm.conf").write_text(config)
        (self._folder / "cgroup.conf").write_text(_CGROUP if self._constrains else "")
        files = f"{self._devices}/nvidia[0-{self._gpus - 1}]"
        (self._folder / "gres.conf").write_text(f"NodeName=node Name=gpu File={files}\n")
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munge: list[str | Path] = [
            *("munged", "--foreground", "--force", f"--socket={self._folder}/munge.socket"),
            *(
                f"--{name}-file={self._folder}/munge.{name}"
                for name in ("key", "pid", "seed", "log")
            ),
        ]
        with ExitStack() as stack:
            stack.callback(_remove_cgroups)
            self._start(stack, munge, (self._folder / "munge.socket").exists)
            self._start(
                stack,
                ["slurmctld", "-D", "-i"],
                lambda: self("scontrol", "ping", check=False).returncode == 0,
            )
            self._start(stack, ["slurmd", "-D", "-N", "node"], self._is_idle)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, *argv: str | Path, check: bool = True) -> Completed:
        """Run a program of Slurm's, or another, on the node."""
        return run(self._words(*argv), check=check)

    @contextmanager
    def taken(self, gpus: int) -> Iterator[None]:
        """Have another job that holds so many of the GPUs."""
        begun = self._folder / "begun"
        srun = ("srun", "--job-name=other", f"--gres=gpu:{gpus}")
        with Daemon(
            self._words(*srun, "sh", "-c", f"touch {begun}; sleep 600"),
            log=self._folder / "other.log",
            ready=begun.exists,
        ):
            yield
            # srun itself waits for its job before it ends.
            self("scancel", "--name=other")
        begun.unlink()

    def _words(self, *argv: str | Path) -> list[str | Path]:
        """A command as it is run on the node."""
        config = f"SLURM_CONF={self._folder}/slurm.conf"
        return [*self._node.enter(), "env", "--chdir=/", config, *argv]

    def _is_idle(self) -> bool:
        return self("sinfo", "--noheader", "--format=%T").stdout.strip() == "idle"

    def _start(self, stack: ExitStack, argv: list[str | Path], ready: Callable[[], bool]) -> None:
        log = self._folder / f"{argv[0]}.log"
        daemon = Daemon(self._words(*argv), log=log, ready=ready, ready_within_s=60)
        stack.callback(daemon.stop)


def _remove_cgroups() -> None:
    """Those that slurmd leaves, the inner ones first."""
    for folder in sorted(_DEVICES.glob("slurm*/**/"), reverse=True):
        with suppress(OSError):
            folder.rmdir()


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
    _add_programs(machine.layer)
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
