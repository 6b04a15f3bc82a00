"""Debian trees with systemd and container engines, to boot as containers on this machine."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from kit.cache import cached
from kit.debian import debootstrap, mirror
from kit.guest.tree import within

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["EngineTree"]

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
    """What a tree is made of.

    Attributes:
        name: what the cache calls it.
        suite: the release of Debian.
        packages: what it has besides engines.
        files: files and their texts, in place before packages are installed.
        then: a script that runs in it at the end.
    """

    name: str
    suite: str
    packages: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    then: str = ""

    def path(self) -> Path:
        """The tree, made where the cache has none.

        Raises:
            CommandFailedError: one of the programs failed; its output is in the message.
        """
        made_of = repr((astuple(self), _PACKAGES, _QUIET))
        return cached(
            f"{self.name}-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}", self._make
        )

    def _make(self, draft: Path) -> None:
        debootstrap(self.suite, draft)
        shutil.copy("/etc/resolv.conf", draft / "etc/resolv.conf")
        (draft / "etc/apt/sources.list").write_text(f"deb {mirror()} {self.suite} main\n")
        policy = draft / "usr/sbin/policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        for name, text in self.files:
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_text(text)
        within(
            draft,
            "apt-get -q update\n"
            "apt-get -qy --no-install-recommends install"
            f" {' '.join((*_PACKAGES, *self.packages))}\n"
            "apt-get clean\n"
            f"systemctl disable {' '.join(_QUIET)}\n"
            f"{self.then}",
        )
        policy.unlink()
