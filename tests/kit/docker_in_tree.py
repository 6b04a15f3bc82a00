"""Docker from another Debian than this machine's, on the same kernel and without a guest.

Or the machine's own, with an /etc and programs that the machine hasn't. Its programs run in a mount
namespace whose root is that Debian's tree with a layer on top, so that they find their own
libraries and an /etc of their own. The kernel's file systems, a folder for sockets and images, and
what the caller names are the machine's. dockerd starts its own containerd: both, and all runtimes,
have to be in that one namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kit.engine import flags_of
from kit.engine_tree import DEBIAN_13
from kit.files import remove_tree
from kit.process import Completed, Daemon, end_tree_of, run, wait_for

# Its own root; the first words are the tree, the folder, and how many folders to bind.
_ENTER = """\
set -e
tree=$1 folder=$2 binds=$3; shift 3
root=$folder/root
mkdir -p "$root" "$folder/upper" "$folder/work"
mount -t overlay -o "lowerdir=$tree,upperdir=$folder/upper,workdir=$folder/work" overlay "$root"
for kernel in proc sys dev; do mount --rbind "/$kernel" "$root/$kernel"; done
mount -t tmpfs tmpfs "$root/run"
while [ "$binds" -gt 0 ]; do
    mkdir -p "$root$1"; mount --bind "$1" "$root$1"; shift; binds=$((binds - 1))
done
# Not chroot: a process that joins a container's namespace, as our hook does, is at its root.
cd "$root"
mkdir -p .machine
pivot_root . .machine
umount -l /.machine
exec chroot . "$@"
"""


@dataclass
class DockerInTree:
    """A private Docker, of Debian 13 if no other; `with DockerInTree(...) as docker:` cleans up."""

    # What daemon.json says.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Folders of the machine that are at the same path for Docker.
    binds: tuple[Path, ...] = ()
    # What OCI runtimes find in their environment.
    environment: Mapping[str, str] = field(default_factory=dict)
    # Where its programs are; `/` for the machine's own.
    tree: Path | None = None
    # A folder whose content lies on top of the tree.
    layer: Path | None = None

    def __enter__(self) -> Self:
        tree = self.tree or DEBIAN_13.path()
        self.folder = Path(tempfile.mkdtemp(prefix="provision-docker-"))
        with ExitStack() as stack:
            stack.callback(remove_tree, self.folder)
            stack.callback(end_tree_of, str(self._containerd / "containerd.toml"))
            stack.callback(end_tree_of, str(self._containerd / "containerd.sock"))
            if self.layer:
                shutil.copytree(self.layer, self.folder / "upper", symlinks=True)
            etc = self.folder / "upper/etc"
            (etc / "docker").mkdir(parents=True, exist_ok=True)
            (etc / "cdi").mkdir(exist_ok=True)
            if self.settings:
                (etc / "docker/daemon.json").write_text(json.dumps(self.settings))
            self._dockerd = self._start(tree)
            stack.callback(self._dockerd.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(AssertionError):
            names = self("ps", "--all", "--quiet").stdout.split()
            if names:
                self("rm", "--force", *names)
        self._stack.close()

    def __call__(self, *words: str | Path, check: bool = True) -> Completed:
        return self._enter(
            "docker", "--host", f"unix://{self.folder}/docker.sock", *words, check=check
        )

    def run(self, *argv: str | Path, check: bool = True) -> Completed:
        """Run a program where its daemon runs."""
        return self._enter(*argv, check=check)

    def enter(self) -> list[str | Path]:
        """The words that stand before a command that is to run where its daemon runs."""
        return ["nsenter", f"--target={self._dockerd.pid}", "--mount", "--root", "--wd=/", "--"]

    def reload(self) -> None:
        """Have dockerd read daemon.json again, as `systemctl reload docker` does."""
        said = "Reloaded configuration"
        before = self._log().count(said)
        os.kill(self._dockerd.pid, signal.SIGHUP)
        wait_for(said, lambda: self._log().count(said) > before, within_s=120, said=self._log)

    def _log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def cdi_dir(self) -> Path:
        return Path(f"/proc/{self._dockerd.pid}/root/etc/cdi")

    @property
    def _containerd(self) -> Path:
        return self.folder / "exec/containerd"

    def _enter(self, *words: str | Path, check: bool) -> Completed:
        return run([*self.enter(), *words], check=check)

    def _start(self, tree: Path) -> Daemon:
        binds = (self.folder, *self.binds)
        namespace = ["unshare", "--mount", "--propagation=private", "sh", "-c", _ENTER, "sh"]
        dockerd = ["dockerd", *flags_of(self.folder)]
        return Daemon(
            [*namespace, tree, self.folder, str(len(binds)), *binds, *dockerd],
            log=self.folder / "log",
            ready=lambda: "API listen on" in self._log(),
            env=self.environment,
        )
