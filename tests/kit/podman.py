"""podman with storage of its own and the flags that odd machines need.

* `--ulimit nofile=1024:1024 --ulimit nproc=1024:1024`: podman sets limits of its own, which are
  above the machine's hard limits at places; raising those needs CAP_SYS_RESOURCE, and without it
  every start fails with "setrlimit RLIMIT_NOFILE: Operation not permitted".
* `--cgroup-manager cgroupfs`: the default asks systemd over D-Bus, which containers don't have.
* `--runtime`: Debian's default, crun, refuses hybrid cgroups. For it, podman runs in a mount
  namespace in which the v2 hierarchy is unmounted (`kit.probe.has_hybrid_cgroups`).
* `--network none`: needs neither CNI nor netavark.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kit.engine import remove_tree
from kit.probe import has_hybrid_cgroups
from kit.process import Completed, run

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Podman", "without_hybrid_cgroups"]

_RUN_FLAGS = ("--rm", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")


def without_hybrid_cgroups(argv: list[str | Path]) -> list[str | Path]:
    """`argv`, wrapped so that crun accepts the cgroups where it wouldn't."""
    if not has_hybrid_cgroups():
        return argv
    script = 'umount /sys/fs/cgroup/unified && exec "$@"'
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *argv]


@dataclass
class Podman:
    """A private podman; `with Podman() as podman:` removes its storage at the end.

    Attributes:
        environment: what OCI runtimes find in their environment (podman and conmon pass it on).
    """

    environment: Mapping[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Make the folders."""
        self.folder = Path(tempfile.mkdtemp(prefix="provision-podman-"))
        return self

    def __exit__(self, *_: object) -> None:
        """Remove containers and storage."""
        self("rm", "--all", "--force", check=False)
        remove_tree(self.folder)

    def __call__(self, *words: str | Path, check: bool = True) -> Completed:
        """Run a podman command that starts no container."""
        return run([*self.command(), *words], env=self.environment, check=check)

    def command(self) -> list[str]:
        """The words that stand before a podman subcommand."""
        return [
            "podman",
            f"--root={self.folder}/storage",
            f"--runroot={self.folder}/run",
            f"--tmpdir={self.folder}/state",
            "--cgroup-manager=cgroupfs",
            "--events-backend=file",
        ]

    def load(self, archive: Path) -> None:
        """Load the images of a `docker save` archive."""
        self("load", "--quiet", "--input", archive)

    def run_command(self, *words: str | Path, runtime: str | Path = "runc") -> list[str | Path]:
        """`podman run` with the flags that work everywhere, ready to be started; then `words`."""
        argv: list[str | Path] = [
            *self.command(),
            f"--runtime={runtime}",
            "run",
            *_RUN_FLAGS,
            *words,
        ]
        return without_hybrid_cgroups(argv) if Path(runtime).name == "crun" else argv

    def start(
        self,
        image: str,
        *words: str,
        flags: tuple[str, ...] = (),
        runtime: str | Path = "runc",
        check: bool = True,
    ) -> Completed:
        """Run `words` in a container of `image` without a network; `flags` go to `podman run`."""
        argv = self.run_command("--network=none", *flags, image, *words, runtime=runtime)
        return run(argv, env=self.environment, check=check)
