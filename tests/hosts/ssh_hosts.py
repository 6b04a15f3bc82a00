"""Debian hosts with systemd, an ssh server and engines, as an inventory has them.

They are containers: a boot takes a second. They share this machine's kernel and network; what they
may not do (load modules, make network interfaces) is what a host without those rights says of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import testinfra

from kit.engine_tree import DEBIAN_12, DEBIAN_13, EngineTree
from kit.files import remove_tree, write
from kit.hosts import OLD_KERNEL
from kit.playbooks import SSH_OPTIONS, ssh_variables
from kit.process import Completed, run, wait_for
from kit.registry import free_port
from kit.systemd import SHARED_NETWORK, SystemdContainer

__all__ = ["DEBIAN_12", "DEBIAN_13", "KERNEL", "SshHost"]

# Which kernel a host believes to run. Its modules can't be loaded: containers may not.
KERNEL = OLD_KERNEL
_WAIT_S = 120


@dataclass
class SshHost:
    """A host that answers by ssh; `with SshHost(...) as machine:` removes it at the end."""

    # Its files.
    release: EngineTree
    # Its name in the inventory.
    name: str = "host"
    # Folders of this machine that it sees, and where.
    binds: Mapping[Path, str] = field(default_factory=dict)
    # Whether it has a network of its own with nothing but a loopback interface: ssh comes in by a
    # program that joins it, and nothing goes out.
    isolated: bool = False
    port: int = field(init=False)

    def __enter__(self) -> Self:
        """Boot it, and wait until it answers."""
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="provision-host-"))
        with ExitStack() as stack:
            stack.callback(remove_tree, self.folder)
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key])
            flags = (
                f"--network={'none' if self.isolated else 'host'}",
                *(f"--volume={path}:{there}" for path, there in self.binds.items()),
            )
            machine = SystemdContainer(
                tree=self.release.path(), capabilities=SHARED_NETWORK, flags=flags
            )
            self._container = stack.enter_context(machine)
            self._set_up()
            if self.isolated:
                self._make_way_in()
            self.start_ssh()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Switch it off, and remove it."""
        self._stack.close()

    def __call__(self, *words: str | Path, check: bool = True) -> Completed:
        """Run a command in it, not by ssh."""
        return self._container(*words, check=check)

    @property
    def key(self) -> Path:
        """The private key that opens it."""
        return self.folder / "key"

    def sh(self, script: str, *, check: bool = True) -> str:
        """Run a shell script in it; what it prints."""
        return self("sh", "-euc", script, check=check).stdout

    def write(self, path: str, text: str) -> None:
        """Write a file of it."""
        self("sh", "-euc", 'mkdir -p "$(dirname "$0")"; printf %s "$1" > "$0"', path, text)

    def read(self, path: str) -> str:
        """Read a file of it."""
        return self("cat", path).stdout

    def snapshot(self, *folders: str) -> dict[str, str]:
        """What there is in folders: each path, with its type, mode, owner and content."""
        script = (
            'find "$@" ! -type d -printf "%p %y %m %u:%g %l " '
            '\\( -type f -exec sha256sum {} ";" -o -printf "\\n" \\)'
        )
        lines = self("sh", "-euc", script, "sh", *folders).stdout.splitlines()
        return dict(line.split(" ", 1) for line in lines)

    def start_ssh(self) -> None:
        """Start its ssh server, and wait until it answers."""
        self("systemctl", "start", "ssh")
        where = ("-i", str(self.key), "-p", str(self.port), "root@127.0.0.1")
        words = ("ssh", *self._ssh_options, *where, "true")

        def answers() -> bool:
            return run(words, check=False, timeout_s=_WAIT_S).returncode == 0

        wait_for(f"{self.name} at port {self.port}", answers, within_s=_WAIT_S)

    def seen_by_ssh(self) -> Any:  # noqa: ANN401 - testinfra has no type hints
        """The host as testinfra sees it."""
        options = " ".join(self._ssh_options)
        address = f"ssh://root@127.0.0.1:{self.port}"
        words = {"ssh_identity_file": str(self.key), "ssh_extra_args": options, "timeout": _WAIT_S}
        return testinfra.get_host(address, **words)

    def cut(self) -> None:
        """End its ssh server and all sessions of it, as a network that breaks off does."""
        self("sh", "-c", "systemctl stop ssh; pkill -KILL sshd; true")

    def variables(self) -> dict[str, object]:
        """What an inventory says of it."""
        return ssh_variables(self.folder, self.key, self.port, self._ssh_options)

    @property
    def _ssh_options(self) -> tuple[str, ...]:
        way_in = ("-o", f"ProxyCommand={self._way_in}") if self.isolated else ()
        return (*SSH_OPTIONS, *way_in)

    @property
    def _way_in(self) -> Path:
        return self.folder / "way-in"

    def _make_way_in(self) -> None:
        """Write the program that carries ssh between this machine and its network."""
        joined = f"exec nsenter --target {self._container.process} --net bash -c"
        # ssh kills the program that it started, and only that: the other cat sees the end of its
        # input, and closes the connection. The other way round, the server waits for ever.
        carry = f"exec 3<>/dev/tcp/127.0.0.1/{self.port} 4<&0; cat <&4 >&3 & exec cat <&3"
        write(self._way_in, f"#!/bin/sh\n{joined} '{carry}'\n", 0o755)

    def _set_up(self) -> None:
        public = self.key.with_suffix(".pub").read_text()
        self.write("/root/.ssh/authorized_keys", public)
        port = f"ListenAddress 127.0.0.1\nPort {self.port}\nPermitRootLogin prohibit-password\n"
        self.write("/etc/ssh/sshd_config.d/kit.conf", port)
        # A kernel of Debian's runs here, as far as files tell; and it is installed.
        self.write("/run/kernel-release", f"{KERNEL}\n")
        self.write(f"/lib/modules/{KERNEL}/modules.dep", "")
        self.write(f"/boot/vmlinuz-{KERNEL}", "")
        self.sh(
            "chmod 700 /root/.ssh; ssh-keygen -A >/dev/null;"
            " mount --bind /run/kernel-release /proc/sys/kernel/osrelease"
        )
