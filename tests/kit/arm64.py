"""Programs of arm64 on this machine: Debian's qemu-user, which the kernel starts for them."""

from __future__ import annotations

import platform
from pathlib import Path

from kit.probe import need
from kit.process import run

__all__ = ["MACHINE", "run_foreign_programs"]

MACHINE = "aarch64"
_HANDLERS = Path("/proc/sys/fs/binfmt_misc")
# What systemd-binfmt reads when Debian's package is installed; it says `F`.
_CONFIG = Path(f"/usr/lib/binfmt.d/qemu-{MACHINE}.conf")


def run_foreign_programs() -> None:
    """Have the kernel start programs of arm64, as it does where systemd has read its settings.

    It stays so: nothing else is changed by it.
    """
    if platform.machine() == MACHINE:
        return
    need(_CONFIG.is_file(), f"the program qemu-{MACHINE}-static", ".ci/setup nightly")
    if not (_HANDLERS / "register").exists():
        run(["mount", "-t", "binfmt_misc", "binfmt_misc", _HANDLERS], check=False)
    need((_HANDLERS / "register").exists(), "a kernel with binfmt_misc", "modprobe binfmt_misc")
    if not (_HANDLERS / f"qemu-{MACHINE}").exists():
        (_HANDLERS / "register").write_text(_CONFIG.read_text().strip())
