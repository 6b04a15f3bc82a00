"""A bootable disk from a root tree, without mounting anything: MBR, GRUB, one ext4 partition.

Sources: grub-mkimage(1) and the layout of GRUB's "MBR gap" (its manual, section "BIOS
installation"); mke2fs(8) for `-d` and the `offset` extension.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kit.guest.tree import CONSOLE, within
from kit.process import run

if TYPE_CHECKING:
    from pathlib import Path

    from kit.guest.recipe import Recipe

DISK_BYTES = 8 << 30
_SECTOR = 512
_FIRST_SECTOR = 2048
# Bytes of boot.img that are code; the partition table follows.
_BOOT_CODE = 440
_LINUX = 0x83
_ACTIVE = 0x80

# GRUB's own modules for the way to /boot; everything else it loads from there.
_GRUB_CORE = "biosdisk part_msdos ext2"
# The first start's menu; the guest's own update-grub replaces it.
_MENU = """\
set default=0
set timeout=0
linux /boot/vmlinuz-{release} root=/dev/vda1 ro console={console} net.ifnames=0 {more}
initrd /boot/initrd.img-{release}
boot
"""


def make_disk(recipe: Recipe, tree: Path, disk: Path) -> None:
    """Write the tree to the new file `disk`: qcow2, compressed. Needs root, for owners of files."""
    (release,) = (path.name.removeprefix("vmlinuz-") for path in (tree / "boot").glob("vmlinuz-*"))
    menu = _MENU.format(
        release=release, console=CONSOLE, more=f"mitigations=off {recipe.kernel_arguments}"
    )
    (tree / "boot/grub").mkdir(exist_ok=True)
    (tree / "boot/grub/grub.cfg").write_text(menu)
    within(
        tree,
        "cp -r /usr/lib/grub/i386-pc /boot/grub/\n"
        f"grub-mkimage -O i386-pc -p '(hd0,msdos1)/boot/grub' -o /boot/core.img {_GRUB_CORE}",
    )
    boot_code = (tree / "usr/lib/grub/i386-pc/boot.img").read_bytes()[:_BOOT_CODE]
    core = (tree / "boot/core.img").read_bytes()
    (tree / "boot/core.img").unlink()
    if len(core) > (_FIRST_SECTOR - 1) * _SECTOR:
        raise RuntimeError(f"GRUB's core has {len(core)} bytes, more than fit before a partition")
    raw = disk.with_suffix(".raw")
    with raw.open("wb") as stream:
        stream.truncate(DISK_BYTES)
        stream.write(boot_code)
        stream.seek(_BOOT_CODE)
        stream.write(_partition_table())
        stream.seek(_SECTOR)
        stream.write(core)
    offset = _FIRST_SECTOR * _SECTOR
    # The K matters: a bare number counts blocks.
    size = f"{(DISK_BYTES - offset) // 1024}K"
    # Nothing of the file system is initialised lazily: that would slow down the first minutes.
    options = f"offset={offset},lazy_itable_init=0,lazy_journal_init=0"
    run(["mke2fs", "-q", "-t", "ext4", "-d", tree, "-E", options, raw, size])
    # A third of its size, for some ten seconds; guests write to a disk upon it.
    qcow2 = ("-c", "-O", "qcow2", "-o", "compression_type=zstd")
    run(["qemu-img", "convert", *qcow2, raw, disk])
    raw.unlink()


def _partition_table() -> bytes:
    """One active Linux partition over the whole disk, addressed only by sectors (LBA)."""
    sectors = DISK_BYTES // _SECTOR - _FIRST_SECTOR
    no_chs = b"\xfe\xff\xff"
    first = struct.pack("<B3sB3sII", _ACTIVE, no_chs, _LINUX, no_chs, _FIRST_SECTOR, sectors)
    signature = struct.pack("<IH", 0x70726F76, 0)
    return signature + first + bytes(3 * 16) + b"\x55\xaa"
