"""UEFI firmware with Secure Boot, for a guest whose disk was made for a BIOS.

Debian's `ovmf` has a set of variables with a key of its own in the firmware's list of those that
are trusted (`db`), and the key itself, so that tests can sign with it: its README.Debian. Debian's
kernels trust keys of that list for modules.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kit.probe import need, need_programs
from kit.process import run

if TYPE_CHECKING:
    from kit.guest.guest import Guest

__all__ = ["CERTIFICATE", "KEY", "PASSPHRASE", "SecureBoot", "need_secure_boot"]

KEY = Path("/usr/share/ovmf/PkKek-1-snakeoil.key")
CERTIFICATE = Path("/usr/share/ovmf/PkKek-1-snakeoil.pem")
PASSPHRASE = "snakeoil"  # noqa: S105 - its README.Debian has it
_CODE = Path("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd")
_VARIABLES = Path("/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd")
_COMMAND_LINE = "root=/dev/vda1 ro console=ttyS0 net.ifnames=0 mitigations=off"


def need_secure_boot() -> None:
    """Skip or fail a test where the firmware, or what signs a kernel for it, is missing."""
    need(_VARIABLES.exists(), str(_VARIABLES), ".ci/setup test")
    need_programs("sbsign")


@dataclass(frozen=True, slots=True)
class SecureBoot:
    """A kernel that the firmware accepts, and the firmware's own variables."""

    # Has both.
    folder: Path

    @classmethod
    def of(cls, guest: Guest, folder: Path) -> SecureBoot:
        """Sign the running kernel of a guest, to start it with from now on."""
        release = guest.kernel()
        guest.get(f"/boot/vmlinuz-{release}", folder / "vmlinuz")
        guest.get(f"/boot/initrd.img-{release}", folder / "initrd")
        key = folder / "key"
        run(["openssl", "pkey", "-in", KEY, "-passin", f"pass:{PASSPHRASE}", "-out", key])
        kernel = folder / "vmlinuz"
        run(["sbsign", "--key", key, "--cert", CERTIFICATE, "--output", kernel, kernel])
        shutil.copy(_VARIABLES, folder / "variables")
        return cls(folder)

    def arguments(self) -> list[str]:
        """What QEMU is started with. The firmware wants SMM, which keeps its variables from us."""
        flash = "if=pflash,format=raw,unit"
        return [
            *("-machine", "q35,smm=on"),
            *("-global", "driver=cfi.pflash01,property=secure,value=on"),
            *("-drive", f"{flash}=0,readonly=on,file={_CODE}"),
            *("-drive", f"{flash}=1,file={self.folder}/variables"),
            *("-kernel", f"{self.folder}/vmlinuz", "-initrd", f"{self.folder}/initrd"),
            *("-append", _COMMAND_LINE),
        ]
