"""What the test guests are: which packages, which settings, what their first start has to bring."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from kit.cache import REPOSITORY
from kit.hosts import OLD_KERNEL

__all__ = ["CONTROL_MAC", "DEBIAN_12", "DEBIAN_13", "WORLD_MAC", "Recipe"]

# The control network carries ssh and nothing else; the other is what tests switch off.
CONTROL_MAC = "52:54:00:70:72:01"
WORLD_MAC = "52:54:00:70:72:02"

_HOST = (
    "busybox",
    "ca-certificates",
    "containerd",
    "crun",
    "dbus",
    "docker.io",
    "grub-pc",
    "initramfs-tools",
    "iproute2",
    "iptables",
    "kmod",
    "lz4",
    "nftables",
    "openssh-server",
    "podman",
    "procps",
    "python3",
    "runc",
    "systemd-sysv",
    "udev",
)
_MADE_BY = ("recipe.py", "tree.py", "disk.py", "../debian.py")
# What the package `provision` depends on: apt would take minutes for it in emulation.
_DEPENDENCIES = tuple(
    f"python3-{name}"
    for name in (
        *("click", "cryptography", "debian", "distro", "jinja2", "packaging", "requests"),
        "rich",
    )
)
_ROOTLESS = ("dbus-user-session", "fuse-overlayfs", "passwd", "slirp4netns", "uidmap")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A Debian guest.

    Attributes:
        name: What its files in the cache are called.
        suite: Debian's.
        python: The suite's Python, as `3.11`.
        packages: What is installed beside a minimal system.
        kernel_arguments: Further words of the kernel's command line.
        selinux: Whether the whole tree is labelled for Debian's SELinux policy.
    """

    name: str
    suite: str
    python: str
    packages: tuple[str, ...]
    kernel_arguments: str = ""
    selinux: bool = False

    def digest(self) -> str:
        """Twelve digits that change with whatever the disk is made from, mirror's state aside."""
        parts = [json.dumps(asdict(self)), json.dumps(self.requirements())]
        folder = Path(__file__).parent
        parts += [(folder / name).read_text() for name in _MADE_BY]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]

    @staticmethod
    def requirements() -> list[str]:
        """What provision needs from PyPI."""
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
        requirements: list[str] = project["dependencies"]
        return requirements


DEBIAN_12 = Recipe(
    "debian-12",
    "bookworm",
    "3.11",
    packages=(*_HOST, *_ROOTLESS, *_DEPENDENCIES, "apparmor", f"linux-image-{OLD_KERNEL}"),
)
DEBIAN_13 = Recipe(
    "debian-13",
    "trixie",
    "3.13",
    packages=(
        *_HOST,
        "auditd",
        "docker-cli",
        "linux-image-amd64",
        "policycoreutils",
        "selinux-policy-default",
        "selinux-utils",
    ),
    kernel_arguments="security=selinux selinux=1 enforcing=1",
    selinux=True,
)
