"""A kernel's package for guests: Debian's own, repacked so that dpkg is done in half the time.

In emulation most of an installation is decompressing, and writing modules of absent hardware.
"""

from __future__ import annotations

from pathlib import Path

from kit.cache import cached
from kit.process import run
from kit.repackaged import download

_ABSENT = {
    "drivers": (
        *("comedi", "gpu", "hwmon", "iio", "infiniband", "isdn", "md", "mtd", "net/ethernet"),
        *("net/wireless", "platform", "scsi", "staging", "target", "usb", "watchdog"),
        *(f"media/{name}" for name in ("dvb-frontends", "i2c", "pci", "tuners", "usb")),
    ),
    "fs": ("btrfs", "ceph", "f2fs", "gfs2", "nfs", "nfsd", "ocfs2", "smb", "xfs"),
    "net": ("bluetooth", "mac80211", "sched", "sunrpc", "wireless"),
    ".": ("sound",),
}


def kernel_package(kernel: str) -> Path:
    """The package `linux-image-KERNEL` of Debian 12, from the cache."""

    def make(draft: Path) -> None:
        work = draft.with_suffix(".work")
        run(["rm", "-rf", work])
        work.mkdir()
        name = f"linux-image-{kernel}"
        architecture = kernel.rpartition("-")[2]
        downloaded = download("bookworm", [name], work, architecture=architecture)
        (package,) = (one for one in downloaded if one.name.startswith(name))
        tree = work / "tree"
        run(["dpkg-deb", "--raw-extract", package, tree])
        modules = tree / "lib/modules" / kernel / "kernel"
        absent = (modules / above / name for above, names in _ABSENT.items() for name in names)
        run(["rm", "-rf", *absent])
        run(["dpkg-deb", "--build", "--root-owner-group", "-Znone", tree, draft])
        run(["rm", "-r", work])

    return cached(f"linux-image-{kernel}.deb", make)
