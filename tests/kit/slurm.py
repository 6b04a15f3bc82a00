"""Debian's Slurm on one node that isn't in any cluster: controller, node daemon, munge, and `srun`.

Its programs come from Debian's packages and lie on top of a `DockerInTree`, so that the machine has
no Slurm before and after. Everything that they write is in a folder of the node's.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from kit.cache import cached
from kit.docker_in_tree import DockerInTree
from kit.probe import need
from kit.process import Completed, Daemon, run
from kit.registry import free_port
from kit.repackaged import download

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


def add_programs(layer: Path) -> None:
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
        """Start the daemons and wait for the node to be ready for jobs.

        Raises:
            RuntimeError: one of them did not come up; the message has the end of its log.
        """
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
        own = [
            f"--{name}-file={self._folder}/munge.{name}" for name in ("key", "pid", "seed", "log")
        ]
        munge: list[str | Path] = [
            "munged",
            "--foreground",
            "--force",
            f"--socket={self._folder}/munge.socket",
            *own,
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
        """End the daemons."""
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
