"""What the test guests are: which packages, which settings, what their first start has to bring."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from kit.cache import REPOSITORY, key_of
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
    "skopeo",
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
    """A Debian guest."""

    # What its files in the cache are called.
    name: str
    suite: str
    # The suite's Python, as `3.11`.
    python: str
    # What is installed beside a minimal system.
    packages: tuple[str, ...]
    # Further words of the kernel's command line.
    kernel_arguments: str = ""
    # Whether the whole tree is labelled for Debian's SELinux policy.
    selinux: bool = False

    def digest(self) -> str:
        """Twelve digits that change with whatever the disk is made from, mirror's state aside."""
        folder = Path(__file__).parent
        return key_of(asdict(self), self.requirements(), *(folder / name for name in _MADE_BY))

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
    packages=(
        *_HOST,
        *_ROOTLESS,
        *_DEPENDENCIES,
        "apparmor",
        "grub-pc",
        f"linux-image-{OLD_KERNEL}",
    ),
)
DEBIAN_13 = Recipe(
    "debian-13",
    "trixie",
    "3.13",
    packages=(
        *_HOST,
        "auditd",
        "docker-cli",
        "grub-pc",
        "linux-image-amd64",
        "policycoreutils",
        "selinux-policy-default",
        "selinux-utils",
    ),
    kernel_arguments="security=selinux selinux=1 enforcing=1",
    selinux=True,
)
