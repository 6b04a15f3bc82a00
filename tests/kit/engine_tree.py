"""Debian trees with systemd and container engines, to boot as containers on this machine."""

from __future__ import annotations

import shutil
from dataclasses import astuple, dataclass
from pathlib import Path

from kit.cache import cached, key_of
from kit.debian import DEBIAN, debian_tree, install, within

__all__ = ["DEBIAN_12", "DEBIAN_13", "EngineTree"]

_PACKAGES = (
    "systemd",
    "dbus",
    "docker.io",
    "containerd",
    "runc",
    "crun",
    "podman",
    "kmod",
    "ca-certificates",
)
# Nothing is to start by itself: engines of a container would meddle with this machine's network.
_QUIET = (
    "docker.service",
    "docker.socket",
    "containerd.service",
    "podman.socket",
    "podman-auto-update.timer",
    "podman-auto-update.service",
    "podman-restart.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
)


@dataclass(frozen=True, slots=True)
class EngineTree:
    """What a tree is made of."""

    # What the cache calls it.
    name: str
    suite: str
    # What it has besides engines.
    packages: tuple[str, ...] = ()
    # Files and their texts, in place before packages are installed.
    files: tuple[tuple[str, str], ...] = ()
    # A script that runs in it at the end.
    then: str = ""

    def path(self) -> Path:
        """The tree, made where the cache has none."""
        key = key_of(astuple(self), DEBIAN, Path(__file__))
        return cached(f"{self.name}-{key}", self._make)

    def _make(self, draft: Path) -> None:
        debian_tree(self.suite, draft)
        for name, text in self.files:
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_text(text)
        install(self.suite, draft, (*_PACKAGES, *self.packages))
        shutil.copy("/etc/resolv.conf", draft / "etc/resolv.conf")
        within(draft, f"systemctl disable {' '.join(_QUIET)}\n{self.then}")


# Hosts that an inventory can have.
_REACHABLE = ("python3", "openssh-server")
_FIRST_BOOT = """\
systemctl disable ssh.service
# Without one, systemd takes the first boot for one, and enables what packages prefer.
systemd-machine-id-setup
rm -f /etc/ssh/ssh_host_*
"""
DEBIAN_12 = EngineTree("host-bookworm", "bookworm", _REACHABLE, then=_FIRST_BOOT)
DEBIAN_13 = EngineTree("host-trixie", "trixie", (*_REACHABLE, "docker-cli"), then=_FIRST_BOOT)
