"""The paths of one driver on a host; ``root`` is ``/`` or a tree that stands for a host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.files import in_root
from provision.host import STORE

VENDOR_CONFIGS = PurePosixPath("etc/oci-decorator/oci-decorator.d")
LOADER_CONFIGS = PurePosixPath("etc/ld.so.conf.d")
MODPROBE_CONFIGS = PurePosixPath("etc/modprobe.d")
# Where the host's shells find programs; the second where /usr can't be written.
PROGRAMS = (PurePosixPath("usr/local/bin"), PurePosixPath("opt/provision/bin"))
DRACUT_CONFIGS = PurePosixPath("etc/dracut.conf.d")
UNITS = PurePosixPath("etc/systemd/system")
# The services that start containers, by the names that their makers give them, and those of vendors
# that need a loaded driver. Units of ours that prepare a driver come before them.
ENGINES = tuple(
    f"{name}.service"
    for name in (
        *("docker", "snap.docker.dockerd", "podman", "podman-restart", "containerd", "crio"),
        *("kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent", "k0scontroller", "k0sworker"),
        *(f"snap.microk8s.daemon-{name}" for name in ("containerd", "kubelet", "kubelite")),
        "slurmd",
    )
)
DAEMONS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-dcgm.service")


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of a driver."""

    root: Path
    driver: str

    @property
    def folder(self) -> Path:
        """The driver's part of the store, with all its entries."""
        return in_root(self.root, STORE / self.driver)

    def entry(self, short_digest: str) -> Path:
        """Return the folder of one artifact: complete if it is there."""
        return in_root(self.root, STORE / self.driver / short_digest)

    @property
    def current(self) -> Path:
        """Link to the artifact in use."""
        return self.folder / "current"

    @property
    def previous(self) -> Path:
        """Link to the artifact that was in use before."""
        return self.folder / "previous"

    @property
    def kernels(self) -> Path:
        """Folder of links: a kernel's release names the artifact that it uses."""
        return in_root(self.root, STORE / self.driver / "kernels")

    def kernel_link(self, release: str) -> Path:
        """Return the link to the artifact that is used when a kernel runs."""
        return self.kernels / release

    @property
    def state(self) -> Path:
        """The agent's state: what it chose, what failed, and what someone rolled back from."""
        return self.folder / "state.json"

    @property
    def serials(self) -> Path:
        """The serials of the newest artifacts that came from a registry."""
        return self.folder / "serials.json"

    @property
    def record(self) -> Path:
        """The record of managed files: what provision wrote outside of the store."""
        return self.folder / "written.json"

    @property
    def saved(self) -> Path:
        """Copies of other people's files that were replaced on request."""
        return in_root(self.root, STORE / self.driver / "saved")

    @property
    def lock(self) -> Path:
        """The lock file of this folder; a process that changes something in it holds the lock."""
        return self.folder / ".lock"

    @property
    def vendor_config(self) -> Path:
        """The vendor file that oci-decorator reads."""
        return self.root / VENDOR_CONFIGS / f"{self.driver}.json"

    @property
    def loader_config(self) -> Path:
        """The file by which the host's dynamic loader finds the driver's libraries."""
        return self.root / LOADER_CONFIGS / f"provision-{self.driver}.conf"

    @property
    def modprobe_config(self) -> Path:
        """The file that keeps udev from loading in-tree copies, and what conflicts with them."""
        return self.root / MODPROBE_CONFIGS / f"provision-{self.driver}.conf"

    @property
    def dracut_config(self) -> Path:
        """The file that keeps the same modules out of an initramfs of dracut."""
        return self.root / DRACUT_CONFIGS / f"provision-{self.driver}.conf"

    def mount_unit(self, path: str) -> Path:
        """Return the unit that mounts the driver's root for other systems.

        Source: systemd.mount(5): the unit is named after its path.
        """
        return self.root / UNITS / f"{path.strip('/').replace('/', '-')}.mount"

    @property
    def ready_unit(self) -> Path:
        """The unit that says to other systems that the mounted root is ready."""
        return self.root / UNITS / f"provision-{self.driver}-ready.service"

    @property
    def managed(self) -> tuple[Path, ...]:
        """The files outside of the store that an activation writes."""
        return self.vendor_config, self.loader_config, self.modprobe_config, self.dracut_config

    @property
    def driver_root(self) -> PurePosixPath:
        """The current user space, as a path on the host itself."""
        return PurePosixPath("/") / STORE / self.driver / "current/driver"

    def linked(self, link: Path) -> Path | None:
        """Return the artifact that a link of the store leads to; None if it leads nowhere."""
        if not link.is_symlink():
            return None
        target = in_root(self.root, link.relative_to(self.root))
        return target if target.is_dir() else None
