"""The paths of one driver on a host, and the locks of a host in the order in which they are taken.

``root`` is ``/`` or a tree that stands for a host.

``building``, one a host: a process holds it for up to hours while it makes artifacts (``apply``,
``prepare``) or runs ``gc --images``. It only saves work: two agents don't build the same twice.

``switching``, one a host: a process holds it for seconds while it switches artifacts, loads or
unloads modules, removes artifacts or publishes the status.

``changing``, one a driver: a process holds it for moments while it reads the driver's part of the
store in order to write it (entries, links, state, managed files).

Locks are taken in this order only, and never those of two drivers at once. A build holds neither of
the last two, so nothing that switches waits for it. Commands that only look (``status``, ``plan``)
take no lock. Why: docs/decisions/08-agent.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from provision.errors import InUseError
from provision.files import LONGEST_WAIT_S, in_root, lock
from provision.host import STORE
from provision.progress import Note, report

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


class Layout(NamedTuple):
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


# Builds take up to hours; other work under a lock takes seconds, or minutes on a slow disk.
BUILD_SECONDS = LONGEST_WAIT_S
SWITCH_SECONDS = 600.0
# Shorter waits are not reported.
_PATIENCE_SECONDS = 1.0
_BUILDING, _SWITCHING, _CHANGING = range(3)
# Those of a host are not in the store: a look at a host without one leaves nothing behind.
_LOCKS = Path("run/provision")
_BUILD_LOCK = _LOCKS / "building.lock"
_SWITCH_LOCK = _LOCKS / "switching.lock"
UNITS_LOCK = _LOCKS / "units.lock"


class _Held(threading.local):
    def __init__(self) -> None:
        self.ranks: dict[Path, int] = {}
        self.depths: dict[Path, int] = {}


_held = _Held()


@contextmanager
def building(root: Path) -> Iterator[bool]:
    """Keep other agents of a host from building; yield whether this process had to wait for one.

    After a wait, earlier observations of the host are outdated.
    """
    text = "Another provision is building on this host; waiting for it"
    with _taken(in_root(root, _BUILD_LOCK), _BUILDING, text, BUILD_SECONDS) as waited:
        yield waited


@contextmanager
def switching(root: Path, *, limit: float = SWITCH_SECONDS) -> Iterator[None]:
    """Hold a host's lock: no other process switches artifacts, loads modules or removes any."""
    text = "Another provision is at work on this host; waiting for it"
    with _taken(in_root(root, _SWITCH_LOCK), _SWITCHING, text, limit):
        yield


@contextmanager
def changing(layout: Layout) -> Iterator[None]:
    """Hold a driver's lock: no other process changes its part of the store."""
    text = f"Another process is installing {layout.driver}; waiting for it"
    with _taken(layout.lock, _CHANGING, text, SWITCH_SECONDS):
        yield


@contextmanager
def _taken(path: Path, rank: int, text: str, limit: float) -> Iterator[bool]:
    """Take a lock, unless this thread holds it already; yield whether that took a wait.

    A wait that is not short is reported by ``text``.
    """
    path = path.parent.resolve() / path.name
    if path in _held.depths:
        _held.depths[path] += 1
        try:
            yield False
        finally:
            _held.depths[path] -= 1
        return
    _check_order(path, rank)
    with ExitStack() as stack:
        patience = min(_PATIENCE_SECONDS, limit / 2)
        try:
            waited = stack.enter_context(lock(path, limit=patience))
        except InUseError:
            waited = True
            report(Note(text))
            stack.enter_context(lock(path, limit=limit - patience))
        _held.ranks[path], _held.depths[path] = rank, 1
        try:
            yield waited
        finally:
            del _held.ranks[path], _held.depths[path]


def _check_order(path: Path, rank: int) -> None:
    """Refuse an order of locks that could make two processes wait for each other."""
    if any(held >= rank for held in _held.ranks.values()):
        raise RuntimeError(f"'{path}' is locked out of order: {sorted(_held.ranks)} are held")
