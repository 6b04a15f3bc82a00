"""Where things of one driver lie on a host; ``root`` is ``/`` or a tree that stands for a host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.files import in_root

STORE = PurePosixPath("var/lib/provision")
VENDOR_CONFIGS = PurePosixPath("etc/oci-decorator/oci-decorator.d")
LOADER_CONFIGS = PurePosixPath("etc/ld.so.conf.d")
MODPROBE_CONFIGS = PurePosixPath("etc/modprobe.d")


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of a driver."""

    root: Path
    driver: str

    @property
    def folder(self) -> Path:
        """The driver's part of the store; all entries and what belongs to them lie in it."""
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
        """Folder of links: which artifact is for which kernel."""
        return in_root(self.root, STORE / self.driver / "kernels")

    def kernel_link(self, release: str) -> Path:
        """Return the link to the artifact that is used when a kernel runs."""
        return self.kernels / release

    @property
    def state(self) -> Path:
        """What the agent remembers: what was chosen, what failed, what was rolled back from."""
        return self.folder / "state.json"

    @property
    def serials(self) -> Path:
        """How new the artifacts were that came from a registry."""
        return self.folder / "serials.json"

    @property
    def record(self) -> Path:
        """What was written outside of the store."""
        return self.folder / "written.json"

    @property
    def saved(self) -> Path:
        """Copies of other people's files that were replaced on request."""
        return in_root(self.root, STORE / self.driver / "saved")

    @property
    def lock(self) -> Path:
        """Held by anyone who changes any of this."""
        return self.folder / ".lock"

    @property
    def vendor_config(self) -> Path:
        """What oci-decorator reads."""
        return self.root / VENDOR_CONFIGS / f"{self.driver}.json"

    @property
    def loader_config(self) -> Path:
        """What the host's dynamic loader learns from."""
        return self.root / LOADER_CONFIGS / f"provision-{self.driver}.conf"

    @property
    def modprobe_config(self) -> Path:
        """What keeps modules that are in the driver's way from being loaded."""
        return self.root / MODPROBE_CONFIGS / f"provision-{self.driver}.conf"

    @property
    def driver_root(self) -> PurePosixPath:
        """The current user space, as the host itself calls it whatever ``root`` is."""
        return PurePosixPath("/") / STORE / self.driver / "current/driver"

    def linked(self, link: Path) -> Path | None:
        """Return the artifact that a link of the store leads to; None: it leads to none."""
        if not link.is_symlink():
            return None
        target = in_root(self.root, link.relative_to(self.root))
        return target if target.is_dir() else None

    def on_host(self, path: Path) -> str:
        """Return a path as the host itself calls it."""
        return f"/{path.relative_to(self.root)}"
