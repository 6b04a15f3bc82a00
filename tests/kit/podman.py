"""podman with a configuration and storage of its own, in the way that odd machines need it.

* ulimits: podman sets limits of its own, which are above the machine's hard limits at places;
  raising those needs CAP_SYS_RESOURCE, and without it every start fails with "setrlimit
  RLIMIT_NOFILE: Operation not permitted".
* cgroupfs: the default asks systemd over D-Bus, which containers don't have.
* runc: Debian's default, crun, refuses hybrid cgroups. For it, podman runs in a mount namespace
  in which the v2 hierarchy is unmounted (`kit.probe.has_hybrid_cgroups`).
* no limit of processes: that is a controller which version 2 of cgroups lacks where the machine has
  it in version 1.
* no network unless asked for: that needs neither CNI nor netavark.
* `conmon_env_vars`: podman starts conmon, and so the OCI runtime, with this environment only.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kit.files import remove_tree
from kit.probe import has_hybrid_cgroups
from kit.process import Completed, Daemon, run

# JSON's strings and lists of strings are TOML's too.
_CONFIG = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "none"
pids_limit = 0
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
conmon_env_vars = {environment}
[engine.runtimes]
{runtimes}
"""


def without_hybrid_cgroups(argv: list[str | Path]) -> list[str | Path]:
    """`argv`, wrapped so that crun accepts the cgroups where it wouldn't."""
    if not has_hybrid_cgroups():
        return argv
    script = 'umount /sys/fs/cgroup/unified && exec "$@"'
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *argv]


@dataclass
class Podman:
    """A private podman; `with Podman(...) as podman:` removes its storage at the end."""

    # Name → program of further OCI runtimes (`podman --runtime NAME run`).
    runtimes: Mapping[str, Path] = field(default_factory=dict)
    # What OCI runtimes find in their environment.
    environment: Mapping[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="provision-podman-"))
        environment = {"PATH": os.environ["PATH"], **self.environment}
        config = _CONFIG.format(
            environment=json.dumps([f"{name}={value}" for name, value in environment.items()]),
            runtimes="\n".join(
                f"{json.dumps(name)} = [{json.dumps(str(path))}]"
                for name, path in self.runtimes.items()
            ),
        )
        (self.folder / "containers.conf").write_text(config)
        return self

    def __exit__(self, *_: object) -> None:
        self("rm", "--all", "--force", check=False)
        remove_tree(self.folder)

    def __call__(self, *words: str | Path, check: bool = True) -> Completed:
        return run([*self.command(), *words], env=self.variables(), check=check)

    def command(self) -> list[str]:
        """The words that stand before a podman subcommand."""
        return [
            "podman",
            f"--root={self.folder}/storage",
            f"--runroot={self.folder}/run",
            f"--tmpdir={self.folder}/state",
        ]

    def variables(self) -> dict[str, str]:
        """The environment that makes podman read our configuration, and no other."""
        return {"CONTAINERS_CONF": str(self.folder / "containers.conf")}

    @contextmanager
    def service(self) -> Iterator[str]:
        """Serve Docker's API, as podman.socket does; yields what DOCKER_HOST has to be."""
        socket = self.folder / "podman.sock"
        words = ["system", "service", "--time=0", f"unix://{socket}"]
        with Daemon(
            [*self.command(), *words],
            log=self.folder / "service.log",
            ready=socket.exists,
            env=self.variables(),
        ):
            yield f"unix://{socket}"

    def load(self, archive: Path) -> None:
        self("load", "--quiet", "--input", archive)
