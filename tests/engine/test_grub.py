"""What Debian's own update-grub makes of `[policy] hold_kernels`, on a disk of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.artifact import KERNEL
from kit.files import unmount_all, write_all
from kit.host_tree import NEXT
from kit.probe import is_root, need, need_programs
from kit.process import run
from kit.repackaged import download
from provision.agent.hold import GrubDropIn

pytestmark = pytest.mark.nightly

# GRUB makes no entries where / is on one of the first ten loop devices: util/grub.d/10_linux.in.
_NUMBER = 42


@contextmanager
def _disk(folder: Path) -> Iterator[Path]:
    """A root with a file system of its own and the programs of this machine."""
    root, device, image = folder / "root", f"/dev/loop{_NUMBER}", folder / "image"
    root.mkdir()
    with image.open("wb") as stream:
        stream.truncate(64 << 20)
    run(["mkfs.ext4", "-q", image])
    run(["sh", "-euc", f"[ -e {device} ] || mknod {device} b 7 {_NUMBER}"])
    run(["losetup", device, image])
    try:
        run(["mount", device, root])
        for name in ("usr", "dev", "sys", "proc", "etc/alternatives", "boot/grub", "tmp"):
            (root / name).mkdir(parents=True)
        for name in ("usr", "dev", "sys"):
            run(["mount", "--rbind", "--make-rprivate", f"/{name}", root / name])
        run(["mount", "-t", "proc", "proc", root / "proc"])
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        run(["cp", "-a", "/etc/alternatives", "/etc/grub.d", "/etc/ld.so.cache", root / "etc"])
        yield root
    finally:
        unmount_all(root)
        run(["losetup", "--detach", device], check=False)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    need(is_root(), "root", "run as root: it mounts a disk")
    need_programs("grub-mkconfig", "mkfs.ext4", "losetup")
    packages = download("bookworm", ["grub2-common"], tmp_path / "packages", architecture="amd64")
    (package,) = (path for path in packages if path.name.startswith("grub2-common"))
    run(["dpkg-deb", "--extract", package, tmp_path / "grub"])
    with _disk(tmp_path) as root:
        # It is not installed on this machine, which boots by something else.
        run(["mount", "--bind", tmp_path / "grub/usr/sbin", root / "usr/local/sbin"])
        files = {"etc/default/grub": "GRUB_DEFAULT=0\nGRUB_TIMEOUT=5\nGRUB_DISTRIBUTOR=Debian\n"}
        for release in (KERNEL, NEXT):
            files |= {f"boot/vmlinuz-{release}": "image", f"boot/initrd.img-{release}": "image"}
        write_all(root, {**files, "var/lib/provision/.hold.json": "{}"})
        yield root


def _default(root: Path) -> str:
    text = (root / "boot/grub/grub.cfg").read_text()
    found: list[str] = re.findall(r'(?m)^ *set default="([^"]*)"$', text)
    return found[-1]


def test_the_entry_of_a_held_kernel_is_the_default_as_long_as_it_is_there(root: Path) -> None:
    loader = GrubDropIn(root)
    loader.put(None)
    menu = root / "boot/grub/grub.cfg"
    before = menu.read_bytes()
    assert _default(root) == "0"
    entry = loader.entry(KERNEL)
    assert entry is not None
    # A submenu, and the entry in it.
    assert all(f"'{part}'" in menu.read_text() for part in entry.split(">"))
    loader.put(loader.value_for(KERNEL, entry))
    assert _default(root) == entry
    # As after the package manager has removed that kernel.
    image = root / f"boot/vmlinuz-{KERNEL}"
    image.unlink()
    run(["chroot", root, "/usr/local/sbin/update-grub"])
    assert _default(root) == "0"
    image.write_text("image")
    # As after provision's record is gone.
    (root / "var/lib/provision/.hold.json").unlink()
    run(["chroot", root, "/usr/local/sbin/update-grub"])
    assert _default(root) == "0"
    loader.put(None)
    assert menu.read_bytes() == before
