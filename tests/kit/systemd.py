"""A container whose PID 1 is systemd, for what only a machine with systemd does.

Needs cgroups of version 1 for the devices, as machines with hybrid cgroups have them too: there a
container sees the machine's hierarchy and may have a part of it. With version 2, take a guest.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kit.cache import REPOSITORY, cached
from kit.debian import debootstrap
from kit.podman import Podman

if TYPE_CHECKING:
    from kit.process import Completed

__all__ = ["SystemdContainer", "has_device_cgroups"]

_SUITE = "bookworm"
_PACKAGES = ("systemd", "dbus", "runc", "crun")
_BOOT_S = 60
# What systemd itself, and containers within this one, need of a machine.
_CAPABILITIES = (
    "AUDIT_WRITE",
    "DAC_READ_SEARCH",
    "MKNOD",
    "NET_ADMIN",
    "SYS_ADMIN",
    "SYS_CHROOT",
    "SYS_PTRACE",
)
_FLAGS = (
    # podman's own way would want a cgroup namespace, where version 1 hides what runc asks for.
    "--systemd=false",
    "--cgroupns=host",
    "--volume=/sys/fs/cgroup:/sys/fs/cgroup",
    "--security-opt=seccomp=unconfined",
    "--security-opt=unmask=ALL",
    "--tmpfs=/run:mode=755",
    "--tmpfs=/tmp",
    "--env=container=podman",
    # systemd takes SIGTERM for a wish to start anew.
    "--stop-timeout=0",
    *(f"--cap-add={name}" for name in _CAPABILITIES),
)


def has_device_cgroups() -> bool:
    """Whether there is a hierarchy of version 1 with the devices controller."""
    return Path("/sys/fs/cgroup/devices/devices.list").exists()


@dataclass
class SystemdContainer:
    """A booted Debian 12 with systemd, runc and crun, and the repository to read.

    Attributes:
        device_rules: what it may open beyond podman's default, and what its own containers may
            then be given, as `c MAJOR:MINOR rwm`.
    """

    device_rules: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        """Boot it.

        Raises:
            RuntimeError: systemd did not come up in time.
        """
        tree = cached(
            f"systemd-{_SUITE}", lambda draft: debootstrap(_SUITE, draft, include=_PACKAGES)
        )
        with ExitStack() as stack:
            self._podman = stack.enter_context(Podman())
            flags = [*_FLAGS, f"--volume={REPOSITORY}:{REPOSITORY}:ro"]
            flags += [f"--device-cgroup-rule={rule}" for rule in self.device_rules]
            root = ("--rootfs", f"{tree}:O")
            self._podman("run", "--detach", "--name=machine", *flags, *root, "/lib/systemd/systemd")
            self._wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Switch it off, and remove it."""
        self._stack.close()

    def __call__(self, *words: str | Path, check: bool = True) -> Completed:
        """Run a command in it."""
        return self._podman("exec", "machine", *words, check=check)

    def _wait(self) -> None:
        deadline = time.monotonic() + _BOOT_S
        state = ""
        while time.monotonic() < deadline:
            state = self("systemctl", "is-system-running", check=False).stdout.strip()
            if state in {"running", "degraded"}:
                return
            time.sleep(0.1)
        raise RuntimeError(f"systemd is {state or 'not there'} after {_BOOT_S} s")
