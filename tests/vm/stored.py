"""Drivers that a guest finds in its store, installed here, where it takes seconds."""

from __future__ import annotations

from pathlib import Path

from kit.agent_host import AgentHost
from kit.guest import Guest
from kit.hosts import DISTRO, OLD_KERNEL
from kit.process import run
from kit.product import BUILD_NETWORK, Provision
from provision.store.layout import Layout

# What an installation writes; the rest of the tree is the guest's own.
_WRITTEN = (
    "var/lib/provision",
    "etc/ld.so.conf.d",
    "etc/modprobe.d",
    "etc/oci-decorator",
    "etc/provision",
)


class Store:
    """What lies below a guest's root once drivers are installed.

    Args:
        provision: The command, with an engine.
        root: A new folder that stands for the guest's root.
        settings: What its provision.toml has besides drivers.
    """

    def __init__(self, provision: Provision, root: Path, settings: str = "") -> None:
        self.host = AgentHost.make(root, running=OLD_KERNEL)
        self._provision = provision
        self._settings = settings
        self._named: list[str] = []

    @property
    def root(self) -> Path:
        """The folder that stands for the guest's root."""
        return self.host.root

    def install(self, driver: str, *words: str | Path) -> Path:
        """Build and install a driver; returns its store entry."""
        target = ("--kernel", OLD_KERNEL, "--distro", DISTRO, "--root", self.root)
        built = self._provision.json("build", driver, *target, *BUILD_NETWORK, *words)
        self._named.append(driver)
        drivers = "".join(f"[drivers.{name}]\n" for name in self._named)
        self.host.configure(self._settings + drivers)
        self._provision("install", built["image"], "--root", self.root)
        return Layout(self.root, driver).current.resolve()

    def put(self, guest: Guest) -> None:
        """Put all of it into a guest, in place of what the guest has of it."""
        archive = self.root.with_suffix(".tar")
        there = [name for name in _WRITTEN if (self.root / name).exists()]
        run(["tar", "-C", self.root, "-cf", archive, *there])
        guest.put(archive, "/root/store.tar")
        guest("rm -rf /var/lib/provision; tar -C / -xf /root/store.tar; rm /root/store.tar")
        archive.unlink()
