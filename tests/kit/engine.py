"""A Docker engine of our own: its own containerd, folders and socket, no bridge, stopped by pid.

Why each flag (found on machines with hybrid cgroups, without CAP_SYS_RESOURCE, without systemd):

* own containerd: dockerd takes the system's where one runs, and then our runtime would neither
  get our environment nor be gone when we stop.
* `--bridge=none --iptables=false`: another engine's docker0 and the host's firewall stay as they
  are, and no kernel module for NAT is needed. Containers use `--network host` or have none.
* `native.cgroupdriver=cgroupfs`: works with and without systemd, with v1, hybrid and v2.
* no `--default-ulimit`, no `--privileged` anywhere: raising a hard limit needs CAP_SYS_RESOURCE.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kit.containerd import Containerd
from kit.files import remove_tree, unmount_all
from kit.probe import find_program, installed_program
from kit.process import Completed, Daemon, run, wait_for


def flags_of(folder: Path, data_root: Path | None = None) -> list[str]:
    """What every dockerd with a folder of its own is started with."""
    return [
        f"--host=unix://{folder}/docker.sock",
        f"--data-root={data_root or folder / 'data'}",
        f"--exec-root={folder}/exec",
        f"--pidfile={folder}/docker.pid",
        *("--bridge=none", "--iptables=false", "--ip6tables=false"),
        "--exec-opt=native.cgroupdriver=cgroupfs",
    ]


@dataclass
class Engine:
    """A private engine. `with Engine(...) as engine:` starts it and cleans up behind it."""

    # Images and layers; kept when given, else removed with everything else.
    data_root: Path | None = None
    # Name → program of further OCI runtimes (`docker run --runtime NAME`).
    runtimes: Mapping[str, Path] = field(default_factory=dict)
    # What the runtimes find in their environment (the shims inherit it).
    environment: Mapping[str, str] = field(default_factory=dict)
    # What daemon.json says; what is there can't be an argument of ours too.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Of the loopback interface, at which it listens too, without TLS (for guests).
    port: int | None = None

    def __enter__(self) -> Self:
        # Short, and not below the cache: a socket's path may have 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="provision-engine-"))
        self._daemons = ExitStack()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(AssertionError):
            self.remove_containers()
        self._daemons.close()
        if self.data_root is not None:
            unmount_all(self.data_root)
        remove_tree(self.folder)

    @property
    def host(self) -> str:
        """What DOCKER_HOST has to be for this engine."""
        return f"unix://{self.folder}/docker.sock"

    def docker(self, *words: str | Path, check: bool = True, timeout_s: float = 1800) -> Completed:
        argv = ["docker", "--host", self.host, *words]
        return run(argv, check=check, timeout_s=timeout_s)

    def images(self) -> list[str]:
        """All images, as `repository:tag`."""
        return self.docker("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()

    def layers(self) -> set[str]:
        """The ids of all images and of the steps of their builds."""
        return set(self.docker("images", "--all", "--quiet", "--no-trunc").stdout.split())

    def containers(self) -> list[str]:
        return self.docker("ps", "--all", "--quiet").stdout.split()

    @contextmanager
    def created(self, image: str) -> Iterator[str]:
        """A container of an image, which is never started and removed at the end; its name."""
        name = self.docker("create", image, "none").stdout.strip()
        try:
            yield name
        finally:
            self.docker("rm", name)

    def copy_out(self, image: str, source: str, target: Path) -> Path:
        """Copy a file or a folder out of an image; `target`."""
        with self.created(image) as name:
            self.docker("cp", f"{name}:{source}", target)
        return target

    def unpack(self, image: str, folder: Path) -> Path:
        """Fill a new folder with the files of an image; `folder`."""
        folder.mkdir(parents=True)
        archive = folder.with_name(f"{folder.name}.tar")
        with self.created(image) as name:
            self.docker("export", "--output", archive, name)
        run(["tar", "-C", folder, "-xf", archive])
        archive.unlink()
        return folder

    def wait_until_empty(self, seconds: float = 120) -> None:
        """Wait until no container is left: the engine removes those that ended by itself."""
        what, left = "the end of all containers", self.containers
        wait_for(what, lambda: not left(), within_s=seconds, pause_s=0.2, said=left)

    def remove_containers(self) -> None:
        names = self.containers()
        if names:
            self.docker("rm", "--force", *names)

    def kill(self) -> None:
        """SIGKILL for dockerd, as when it crashes. What it left is cleaned up at the end."""
        self._dockerd.kill()

    def restart(self, *, crash: bool = False, settings: Mapping[str, Any] | None = None) -> None:
        """End dockerd, politely or as a crash does, and start it again; containerd goes on.

        With `settings`, daemon.json says those from now on.
        """
        if crash:
            self._dockerd.kill()
        else:
            self._dockerd.stop()
        if settings is not None:
            self.settings = settings
        # A killed one leaves this, and its number may be another process's by now.
        (self.folder / "docker.pid").unlink(missing_ok=True)
        self._config()
        self._dockerd.start()

    def _start(self) -> None:
        # It is left when dockerd has ended: the containers of a killed one end with it.
        self._containerd = self._daemons.enter_context(Containerd(environment=self.environment))
        self._dockerd = Daemon(
            [installed_program("dockerd"), *self._flags()],
            log=self.folder / "dockerd.log",
            ready=lambda: self.docker("version", check=False).returncode == 0,
            env=self.environment,
        )
        self._daemons.callback(self._dockerd.stop)

    def _flags(self) -> list[str]:
        runtimes = [f"--add-runtime={name}={path}" for name, path in self.runtimes.items()]
        return [
            *flags_of(self.folder, self.data_root),
            f"--containerd={self._containerd.socket}",
            # One of our own: the machine's daemon.json is for its own engine.
            f"--config-file={self._config()}",
            *([f"--host=tcp://127.0.0.1:{self.port}", "--tls=false"] if self.port else []),
            *runtimes,
        ]

    def _config(self) -> Path:
        config = self.folder / "daemon.json"
        config.write_text(json.dumps(dict(self.settings)))
        return config


def answers() -> bool:
    """Whether an engine answers at DOCKER_HOST or, without that, at the default socket."""
    if find_program("docker") is None:
        return False
    # `docker version` fails without a server, `docker info` doesn't.
    return run(["docker", "version"], check=False, timeout_s=20).returncode == 0
