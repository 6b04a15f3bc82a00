"""A container whose PID 1 is systemd, for what only a machine with systemd does.

With cgroups of version 2, podman gives it a part of the hierarchy that is its own.

With version 1, and hybrid, it sees the machine's hierarchies and may have a part of them. systemd
believes that /sys/fs/cgroup is its own: it makes that file system read-only, and mounts every
controller that is not. A hierarchy that it makes so is the machine's, and crun refuses to work
where one is not mounted. It gets a file system of ours to do it to.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kit.cache import REPOSITORY, cached, key_of
from kit.debian import DEBIAN, debian_tree
from kit.files import remove_tree
from kit.podman import Podman
from kit.process import Completed, run, wait_for

_SUITE = "bookworm"
_PACKAGES = ("systemd", "dbus", "runc", "crun")
_BOOT_S = 180
_CGROUPS = Path("/sys/fs/cgroup")
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
# Of one that shares this machine's network.
SHARED_NETWORK = tuple(name for name in _CAPABILITIES if name != "NET_ADMIN")
_FLAGS = (
    "--security-opt=seccomp=unconfined",
    "--security-opt=unmask=ALL",
    # systemd takes SIGTERM for a request to start again.
    "--stop-timeout=0",
)
_VERSION_2 = ("--systemd=always", "--cgroupns=private")
# podman's own way would want a cgroup namespace, where version 1 hides what runc asks for.
_VERSION_1 = (
    "--systemd=false",
    "--cgroupns=host",
    "--tmpfs=/run:mode=755",
    "--tmpfs=/tmp",
    "--env=container=podman",
)


def _has_version_2() -> bool:
    """Whether version 2 is all that is mounted."""
    return (_CGROUPS / "cgroup.controllers").exists()


def _mount_cgroups(folder: Path) -> None:
    """The machine's hierarchies in `folder`, and what keeps systemd from mounting others."""
    run(["mount", "-t", "tmpfs", "tmpfs", folder])
    hierarchies = [path.name for path in _CGROUPS.iterdir() if path.is_mount()]
    for name in hierarchies:
        (folder / name).mkdir()
        run(["mount", "--bind", _CGROUPS / name, folder / name])
    controllers = [line.split()[0] for line in Path("/proc/cgroups").read_text().splitlines()[1:]]
    # These two it mounts together.
    for name in {*controllers, "net_cls,net_prio"} - set(hierarchies):
        (folder / name).mkdir()
        run(["mount", "-t", "tmpfs", "tmpfs", folder / name])


@dataclass
class SystemdContainer:
    """A booted machine with systemd, and the repository to read."""

    # What it may open beyond podman's default, and what its own containers may then be given, as `c
    # MAJOR:MINOR rwm`.
    device_rules: tuple[str, ...] = ()
    # Its files, which stay as they are; without it, Debian 12 with runc and crun.
    tree: Path | None = None
    # What root may do in it, beyond podman's default.
    capabilities: tuple[str, ...] = _CAPABILITIES
    # Further ones of `podman run`.
    flags: tuple[str, ...] = ()
    # How long it may take until nothing is left that its boot has started.
    boot_s: int = _BOOT_S

    def __enter__(self) -> Self:
        tree = self.tree or cached(
            f"systemd-{_SUITE}-{key_of(_PACKAGES, DEBIAN)}",
            lambda draft: debian_tree(_SUITE, draft, include=_PACKAGES),
        )
        with ExitStack() as stack:
            flags = [*_FLAGS, f"--volume={REPOSITORY}:{REPOSITORY}:ro"]
            if _has_version_2():
                flags += _VERSION_2
            else:
                cgroups = Path(tempfile.mkdtemp(prefix="provision-cgroups-"))
                stack.callback(remove_tree, cgroups)
                _mount_cgroups(cgroups)
                flags += [*_VERSION_1, f"--volume={cgroups}:{_CGROUPS}"]
            flags += [f"--cap-add={name}" for name in self.capabilities]
            flags += self.flags
            flags += [f"--device-cgroup-rule={rule}" for rule in self.device_rules]
            root = ("--rootfs", f"{tree}:O")
            self._podman = stack.enter_context(Podman())
            self._podman("run", "--detach", "--name=machine", *flags, *root, "/lib/systemd/systemd")
            wait_for(
                "systemd",
                lambda: self._state() in {"running", "degraded"},
                within_s=self.boot_s,
                said=self._state,
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, *words: str | Path, check: bool = True) -> Completed:
        return self._podman("exec", "machine", *words, check=check)

    @property
    def process(self) -> int:
        """The number of its first process, here."""
        asked = ("inspect", "--format", "{{.State.Pid}}", "machine")
        return int(self._podman(*asked).stdout)

    def _state(self) -> str:
        return self("systemctl", "is-system-running", check=False).stdout.strip()
