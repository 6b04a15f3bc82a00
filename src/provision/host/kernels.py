"""The kernels of a host: the running one, those that may boot next, and their architecture.

Package managers install kernels in several steps. systemd notices a new one when the first file of
its packages is unpacked; the other files and ``modules.dep`` follow up to half a minute later.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from provision.elf import HEAD_SIZE, elf_machine
from provision.errors import ProvisionError
from provision.files import glob_in_root, in_root
from provision.host.boot import (
    Ask,
    BootKernels,
    boot_entries,
    default_kernel,
    next_of_flatcar,
    next_of_ostree,
)
from provision.progress import Note, report
from provision.run import run

# Source: random(4).
_BOOT = PurePosixPath("proc/sys/kernel/random/boot_id")
# Every host has one of these programs.
_PROGRAMS = ("usr/lib/systemd/systemd", "lib/systemd/systemd", "usr/bin/env", "bin/sh")


def kernel_release(root: Path) -> str | None:
    """Return the running kernel's release, from the root's own /proc.

    A root that isn't running (a mounted disk, an unpacked image) has no /proc. Its kernel is the
    complete one under its ``lib/modules`` that would boot. Package managers make a kernel's folder
    long before they are done; ``modules.dep`` comes last.
    """
    running = in_root(root, "proc/sys/kernel/osrelease")
    if running.is_file():
        return running.read_text().strip()
    patterns = ("usr/lib/modules/*/modules.dep", "lib/modules/*/modules.dep")
    complete = {path.parent.name for p in patterns for path in glob_in_root(root, p)}
    newest = newest_of_flavours(complete)
    default = default_kernel(root, _no_question, sorted(complete)).releases
    return next(iter((*default, *newest)), None)


def is_running_host(root: Path) -> bool:
    """Return whether a root is that of this machine, wherever it is mounted.

    An agent in a pod has it at ``/host``. A tree with only the machine's /proc, such as one that an
    image is made in, is not the root of the machine's first process. If this process may not trace
    the first one, only / counts as this machine's root.
    Source: proc_pid_root(5).
    """
    root = root.resolve()
    if root == Path("/"):
        return True
    if not has_this_boot(root):
        return False
    try:
        return (root / "proc/1/root").samefile(root)
    except OSError:
        return False


def has_this_boot(root: Path) -> bool:
    """Return whether a root has the /proc of this machine's kernel: the boot ids are equal."""
    try:
        return in_root(root, _BOOT).read_bytes() == (Path("/") / _BOOT).read_bytes()
    except OSError:
        return False


def boot_id(root: Path) -> str:
    """Return what tells this boot of a root's machine from all others."""
    return in_root(root, _BOOT).read_text().strip()


def kernel_order(release: str) -> list[tuple[int, int, str]]:
    """Return a sort key of kernel releases, of any distro: ``503.el9`` is before ``503.11.1.el9``.

    ``~`` comes before an end, that before words, and numbers come last. Other signs only separate.
    Source: rpmvercmp, https://rpm.org/docs/4.20.x/manual/dependencies.html#versioning
    """
    ranks = [
        (3, int(part), "") if part.isdigit() else (0, 0, "") if part == "~" else (2, 0, part)
        for part in re.findall(r"[0-9]+|~|[A-Za-z]+", release)
    ]
    return [*ranks, (1, 0, "")]


# Words of a release that say no flavour: numbers, the distro's release, Debian's backports, release
# candidates and commits.
_NO_FLAVOUR = r"^(?:(?:el|fc|amzn|deb)\d+(?:u\d+)?|bpo|rc\d+|\d+git\w*|g[0-9a-f]{7,}|\d+$)"


def kernel_flavour(release: str) -> str:
    """Return what tells kernels of one version apart.

    ``amd64`` of ``6.1.0-47-amd64``, ``x86 debug`` of ``5.14.0-503.11.1.el9_5.x86_64+debug``,
    ``nvidia 64k`` of ``6.8.0-1018-nvidia-64k``.
    """
    words = (re.sub(_NO_FLAVOUR, "", word) for word in re.split(r"[-.+~_]", release))
    return " ".join(filter(None, words))


def newest_of_flavours(releases: Iterable[str]) -> list[str]:
    """Return the newest kernel of each flavour, those with the shortest names of flavours first.

    A distro's standard flavour has a short name: others add ``debug``, ``rt`` or ``64k`` to it.
    """
    newest = {kernel_flavour(release): release for release in sorted(releases, key=kernel_order)}
    return [newest[flavour] for flavour in sorted(newest, key=lambda name: (len(name), name))]


def kernel_series(release: str) -> str:
    """Return the series of a kernel: ``6.1`` of ``6.1.0-47-amd64``."""
    return ".".join(release.split(".")[:2])


def machine(root: Path) -> str:
    """Return the architecture as ``uname -m`` prints it.

    For another root it is that of its programs; without programs, it is that of this machine.
    """
    own = os.uname().machine
    if root == Path("/"):
        return own
    paths = [path for name in _PROGRAMS if (path := in_root(root, name)).is_file()]
    return next((found for path in paths if (found := elf_machine(_head(path)))), own)


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(HEAD_SIZE)


_FOLDERS = ("usr/lib/modules", "lib/modules")
_ASK_SECONDS = 60.0


class Kernels(NamedTuple):
    """The kernels of a host, by release."""

    running: str | None
    # Those that may run after the next boot, besides the running one.
    pending: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()
    # Those of which files are missing, maybe for now.
    incomplete: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # Further ones in deployments, slots and boot loader entries, which may boot again.
    others: tuple[str, ...] = ()
    # Why there may be more kernels than these.
    warnings: tuple[str, ...] = ()

    @property
    def relevant(self) -> tuple[str, ...]:
        """The kernels that need modules, the running one first."""
        running = (self.running,) if self.running else ()
        return tuple(dict.fromkeys([*running, *self.pending]))

    @property
    def bootable(self) -> tuple[str, ...]:
        """Every kernel that may be chosen at a boot, the relevant ones first."""
        return tuple(dict.fromkeys([*self.relevant, *self.installed, *self.others]))


def find_kernels(
    root: Path = Path("/"), *, ask: Ask | None = None, extra_kernels: Sequence[str] = ()
) -> Kernels:
    """Return the kernels of a host, given its root.

    Args:
        ask: Runs a program of the host. By default, only the host that runs is asked, by its own
            programs: they know nothing about another root.
    """
    ask = ask or (partial(_ask, root) if is_running_host(root) else _no_question)
    running = kernel_release(root)
    complete, incomplete = _installed(root)
    # An image-based host boots what its updater says, whatever else lies in /lib/modules of the
    # running system.
    found = _pending_elsewhere(root, ask) or _pending_here(root, ask, complete)
    unfinished = [
        f"{release} has an image and no modules.dep: it may boot next, and is not complete; if its"
        f" packages are installed: depmod {release}"
        for release in incomplete
        if release in images_of(root)
    ]
    entries = boot_entries(root)
    known = {running, *complete}
    return Kernels(
        running=running,
        pending=tuple(
            release
            for release in dict.fromkeys([*found.releases, *extra_kernels])
            if release != running
        ),
        installed=tuple(complete),
        incomplete=tuple(incomplete),
        notes=(*found.notes, *unfinished),
        others=tuple(release for release in entries.releases if release not in known),
        warnings=entries.notes,
    )


def kernels_of_usr(usr: Path) -> tuple[str, ...]:
    """Return the kernels of a /usr, such as an unpacked one that has not booted yet."""
    folders = (usr / "lib/modules").glob("[0-9]*")
    return tuple(sorted((path.name for path in folders if path.is_dir()), key=kernel_order))


def _pending_elsewhere(root: Path, ask: Ask) -> BootKernels | None:
    """Return what an image-based host boots next; None for a package-based host."""
    if in_root(root, "run/ostree-booted").exists():
        return next_of_ostree(root, ask(("rpm-ostree", "status", "--json")))
    if in_root(root, "boot/flatcar").is_dir():
        return next_of_flatcar(root, ask(("update_engine_client", "-status")))
    return None


def _pending_here(root: Path, ask: Ask, installed: Sequence[str]) -> BootKernels:
    default = default_kernel(root, ask, installed)
    releases = dict.fromkeys([*default.releases, *newest_of_flavours(installed)])
    return BootKernels(tuple(releases), default.notes)


def images_of(root: Path) -> set[str]:
    """Return the kernels that have an image in /boot."""
    return {path.name.removeprefix("vmlinuz-") for path in glob_in_root(root, "boot/vmlinuz-*")}


def _installed(root: Path) -> tuple[list[str], list[str]]:
    """Return the complete and the incomplete kernels of lib/modules, the newest first.

    Package managers unpack files one by one; depmod writes modules.dep when all are there. A kernel
    without its image can't boot: its package was removed, or is not unpacked yet.
    """
    folders = {
        path.name: folder
        for name in _FOLDERS
        for path in glob_in_root(root, f"{name}/[0-9]*")
        if (folder := in_root(root, path)).is_dir()
    }
    images = images_of(root)
    complete: list[str] = []
    incomplete: list[str] = []
    for release in sorted(folders, key=kernel_order, reverse=True):
        has_image = not images or release in images or (folders[release] / "vmlinuz").exists()
        is_complete = has_image and (folders[release] / "modules.dep").is_file()
        (complete if is_complete else incomplete).append(release)
    return complete, incomplete


def on_host(root: Path, words: Sequence[str]) -> tuple[str, ...]:
    """Return what runs a program of the host, which is elsewhere for an agent in a pod."""
    return (*words,) if root == Path("/") else ("chroot", str(root), *words)


def _ask(root: Path, argv: Sequence[str]) -> str | None:
    why = "learn which kernel boots next"
    try:
        return run(on_host(root, argv), why=why, timeout=_ASK_SECONDS).stdout
    except ProvisionError:
        return None


def _no_question(argv: Sequence[str]) -> str | None:
    del argv
    return None


# Files that package managers lock while they work: dpkg(1), rpm's lib/rpmlock.c.
_LOCKS = ("var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend", "var/lib/rpm/.rpm.lock")
# struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")
_STEP = 1.0
_LIMIT = 900.0
# After one package, the package manager may install the next.
_CALM_STEPS = 3


def wait_for_kernel(
    root: Path, *, limit: float = _LIMIT, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Wait until no package manager is running.

    A kernel's folder that is incomplete after that stays incomplete.

    Returns:
        Whether no package manager runs; False: ``limit`` seconds are over.
    """
    waited, calm = 0.0, 0
    while waited < limit:
        busy = _busy(root)
        if waited == 0.0:
            if busy is None and not find_kernels(root, ask=lambda _argv: None).incomplete:
                return True
            report(Note("Waiting for the package manager to finish"))
        calm = 0 if busy else calm + 1
        if calm >= _CALM_STEPS:
            return True
        sleep(_STEP)
        waited += _STEP
    report(Note(f"'{_busy(root)}' is still locked after {limit:g} s; the run continues"))
    return False


def is_calm(root: Path) -> bool:
    """Return whether no package manager is running."""
    return _busy(root) is None


def _busy(root: Path) -> Path | None:
    return next((path for name in _LOCKS if _is_locked(path := in_root(root, name))), None)


def _is_locked(path: Path) -> bool:
    """Return whether another process holds a lock, without taking the lock."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, asked)
    finally:
        os.close(handle)
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK
