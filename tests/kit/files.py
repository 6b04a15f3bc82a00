"""Files below folders that are made when they are missing, and those of hosts that never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["BOOKWORM", "HostFiles", "write", "write_all"]

# The os-release of Debian 12.
BOOKWORM = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'


def write(path: Path, content: str | bytes, mode: int = 0o644) -> Path:
    """Write a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def write_all(root: Path, texts: Mapping[str, str], mode: int = 0o644) -> None:
    """Write texts below a folder, by name."""
    for name, text in texts.items():
        write(root / name, text, mode)


@dataclass(frozen=True, slots=True)
class HostFiles:
    """The files of a host, below a folder."""

    root: Path

    def write(self, name: str, text: str) -> Path:
        """Write a file."""
        return write(self.root / name, text)

    def add_kernel(self, release: str) -> None:
        """Install a kernel: its modules.dep and its image."""
        self.write(f"lib/modules/{release}/modules.dep", "")
        self.write(f"boot/vmlinuz-{release}", "")

    def boot(self, release: str) -> None:
        """Let a kernel run."""
        self.write("proc/sys/kernel/osrelease", f"{release}\n")
