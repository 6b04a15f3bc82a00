"""Folders and files: written, removed, and laid out as a host has them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kit.process import run

# The os-release of Debian 12 and 13.
BOOKWORM = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'
TRIXIE = 'ID=debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\n'


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(path: Path, content: str | bytes, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def write_all(root: Path, texts: Mapping[str, str], mode: int = 0o644) -> None:
    """Write texts below a folder, by name."""
    for name, text in texts.items():
        write(root / name, text, mode)


def plug_in(root: Path, *devices: str, vendor: str = "10de", driver: str | None = None) -> None:
    """Put display controllers with these device ids into a host, NVIDIA's if no other's."""
    for number, device in enumerate(devices, start=1):
        folder = root / f"sys/bus/pci/devices/0000:{number:02x}:00.0"
        for name, value in {"vendor": vendor, "device": device, "class": "030000"}.items():
            write(folder / name, f"0x{value}\n")
        if driver is not None:
            (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


def remove_tree(folder: Path) -> None:
    """Remove `folder` with everything in it, unmounting first what a killed engine left mounted."""
    unmount_all(folder)
    # Some 100,000 files of kernel headers: rm takes half of shutil.rmtree's time.
    run(["rm", "-rf", "--one-file-system", folder], check=False)


def unmount_all(folder: Path) -> None:
    """Unmount `folder` and everything below it, the deepest first."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted(mounts, reverse=True):
        if mount == str(folder) or mount.startswith(f"{folder}/"):
            run(["umount", "--lazy", mount], check=False)


@dataclass
class HostFiles:
    """The files of a host, below a folder."""

    root: Path

    def write(self, name: str, content: str | bytes = "") -> Path:
        return write(self.root / name, content)

    def add_kernel(self, release: str) -> None:
        """Install a kernel: its modules.dep and its image."""
        self.write(f"lib/modules/{release}/modules.dep")
        self.write(f"boot/vmlinuz-{release}")

    def boot(self, release: str) -> None:
        """Let a kernel run."""
        self.write("proc/sys/kernel/osrelease", f"{release}\n")
