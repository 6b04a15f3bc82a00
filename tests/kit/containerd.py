"""A containerd of our own, without Docker: for `ctr`, and for Kubernetes' interface (`kit.cri`)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kit.files import remove_tree
from kit.probe import installed_program
from kit.process import Completed, Daemon, end_tree_of, run

# Of Kubernetes' part: the pause image is one that is there already; lowering an OOM score needs
# CAP_SYS_RESOURCE; and nothing outside the folder is read.
_CONFIG = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{folder}/cni/bin"
conf_dir = "{folder}/cni/conf"
"""


@dataclass
class Containerd:
    """A private containerd; `with Containerd(...) as containerd:` cleans up behind it."""

    # What is added to its config.toml, without `version`.
    settings: str = ""
    # What OCI runtimes find in their environment.
    environment: Mapping[str, str] = field(default_factory=dict)
    # The image that holds a pod's namespaces open.
    pause: str = "docker.io/library/pause:latest"
    # Where its folder is made.
    parent: Path | None = None
    # What stands before it and its client, where they run elsewhere (`DockerInTree`).
    enter: Sequence[str | Path] = ()

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="provision-containerd-", dir=self.parent))
        self._stack = ExitStack()
        self._stack.callback(remove_tree, self.folder)
        # The shims, and with them the containers, outlive the daemon by design.
        self._stack.callback(end_tree_of, str(self.socket))
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(AssertionError):
            for namespace in self("namespaces", "list", "--quiet").stdout.split():
                for task in self.tasks(namespace):
                    self("--namespace", namespace, "task", "delete", "--force", task, check=False)
        self._stack.close()

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    def __call__(self, *words: str | Path, check: bool = True) -> Completed:
        return run([*self.enter, "ctr", "--address", self.socket, *words], check=check)

    def output(self, *words: str | Path) -> str:
        """What `ctr run --rm WORDS` prints; the container has to print something.

        ctr 1.6 may end before it has copied what a container wrote that was there for a moment
        only: then it runs a second time, under the same name.
        """
        said = (self("run", "--rm", *words).stdout for _ in range(2))
        return next(filter(None, said), "")

    def tasks(self, namespace: str) -> list[str]:
        """The containers with a process, by name."""
        return self("--namespace", namespace, "task", "list", "--quiet").stdout.split()

    def load(self, archive: Path, namespace: str) -> None:
        """Load the images of a `docker save` archive."""
        self("--namespace", namespace, "images", "import", archive)

    def _start(self) -> None:
        program = installed_program("containerd")
        config = self.folder / "config.toml"
        own = _CONFIG.format(folder=self.folder, pause=self.pause)
        config.write_text(own + self.settings)
        daemon = Daemon(
            [*self.enter, program, "--config", config],
            log=self.folder / "log",
            ready=lambda: self("version", check=False).returncode == 0,
            env=self.environment,
        )
        self._stack.callback(daemon.stop)
