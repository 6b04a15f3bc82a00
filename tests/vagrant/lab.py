"""A libvirt of its own in a network of its own, for `vagrant up` beside whatever the machine has.

libvirtd, the guests and dnsmasq are in one PID namespace, so that they end together. The world is
reached through slirp4netns, as QEMU's guests reach it: this machine is 10.0.2.2, names are asked at
10.0.2.3. Guests are behind libvirt's NAT in front of that.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kit.cache import REPOSITORY
from kit.files import remove_tree
from kit.process import Completed, Daemon, run

# What this machine's loopback interface is called in there.
HOST = "10.0.2.2"
_READY_WITHIN_S = 120
_VAGRANT_WITHIN_S = 3600
# libvirt's folders -> ours.
_FOLDERS = {
    "/etc/libvirt": "etc",
    "/run/libvirt": "run",
    "/var/cache/libvirt": "cache",
    "/var/lib/libvirt": "lib",
    "/var/log/libvirt": "log",
}
_QEMU = """\
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
"""
_LIBVIRTD = """\
unix_sock_ro_perms = "0700"
unix_sock_rw_perms = "0700"
auth_unix_ro = "none"
auth_unix_rw = "none"
"""
_START = """
ip link set lo up
for pair in {pairs}; do
    mkdir -p "${{pair#*=}}"
    mount --bind "$0/${{pair%=*}}" "${{pair#*=}}"
done
exec libvirtd
"""


@dataclass
class Lab:
    """`with Lab(environment) as lab: lab("up")` runs `vagrant up` in there."""

    # What Vagrant finds in its environment beside its folders.
    environment: Mapping[str, str]

    def __enter__(self) -> Self:
        """Start libvirtd, and connect it with the world."""
        # Short: libvirt's sockets are below it.
        self.folder = Path(tempfile.mkdtemp(prefix="provision-vagrant-"))
        with ExitStack() as stack:
            stack.callback(remove_tree, self.folder)
            for name in _FOLDERS.values():
                (self.folder / name).mkdir()
            (self.folder / "etc/qemu.conf").write_text(_QEMU)
            (self.folder / "etc/libvirtd.conf").write_text(_LIBVIRTD)
            self._libvirtd = self._start()
            stack.callback(self._end)
            stack.enter_context(self._connect())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End everything in there, and remove its files."""
        self._stack.close()

    def __call__(self, *words: str, check: bool = True) -> Completed:
        """Run `vagrant WORDS` in this checkout."""
        argv = [*self._inside(), "vagrant", *words]
        environment = {
            **self.environment,
            "VAGRANT_HOME": str(self.folder / "home"),
            "VAGRANT_CWD": str(REPOSITORY),
            # Not in the checkout, where a developer may have hosts.
            "VAGRANT_DOTFILE_PATH": str(self.folder / "dot"),
            "VAGRANT_CHECKPOINT_DISABLE": "1",
            "VAGRANT_DEFAULT_PROVIDER": "libvirt",
        }
        return run(argv, env=environment, timeout_s=_VAGRANT_WITHIN_S, check=check)

    def ssh(self, script: str) -> str:
        """Run a script in the host that Vagrant made; what it prints."""
        return self("ssh", "--no-tty", "--command", script).stdout

    def _start(self) -> Daemon:
        pairs = " ".join(f"{name}={place}" for place, name in _FOLDERS.items())
        namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = _START.format(pairs=pairs)
        return Daemon(
            ["unshare", *namespaces, "--propagation=private", "sh", "-euc", script, self.folder],
            log=self.folder / "libvirtd.log",
            ready=(self.folder / "run/libvirt-sock").exists,
            ready_within_s=_READY_WITHIN_S,
        )

    def _end(self) -> None:
        # With the first process of a PID namespace all others end, before it is gone itself.
        os.kill(self._first(), signal.SIGKILL)
        self._libvirtd.stop()

    def _connect(self) -> Daemon:
        return Daemon(
            ["slirp4netns", "--configure", "--mtu=65520", str(self._first()), "tap0"],
            log=self.folder / "slirp.log",
            ready=lambda: "tap0" in run([*self._inside(), "ip", "route"]).stdout,
            ready_within_s=_READY_WITHIN_S,
        )

    def _first(self) -> int:
        """The first process in there."""
        pid = self._libvirtd.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def _inside(self) -> list[str]:
        return ["nsenter", f"--target={self._first()}", "--mount", "--net", "--pid"]
