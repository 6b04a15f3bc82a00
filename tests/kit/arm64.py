"""Programs of arm64 on this machine: an emulator, which the kernel starts for them."""

from __future__ import annotations

import platform
from pathlib import Path

from kit.probe import need
from kit.process import run

MACHINE = "aarch64"
_HANDLERS = Path("/proc/sys/fs/binfmt_misc")
_NAME = f"provision-tests-{MACHINE}"
# The head of its ELF programs, and which bits of it count: of Debian's /usr/lib/binfmt.d.
_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
# With the name that a program was called by; opened once, so that containers have it.
_FLAGS = "POF"


def run_foreign_programs() -> None:
    """Have the kernel start programs of arm64, whatever emulator the machine has for them.

    It stays so until the machine reboots: nothing else is changed by it.
    """
    if platform.machine() == MACHINE:
        return
    if not (_HANDLERS / "register").exists():
        run(["mount", "-t", "binfmt_misc", "binfmt_misc", _HANDLERS], check=False)
    need((_HANDLERS / "register").exists(), "a kernel with binfmt_misc", "modprobe binfmt_misc")
    if not (_HANDLERS / _NAME).exists():
        # Packages are downloaded by what makes trees, of arm64 too.
        from kit.foreign import emulator  # noqa: PLC0415 - which imports this

        # The kernel asks the last one first.
        line = f":{_NAME}:M::{_MAGIC}:{_MASK}:{emulator()}:{_FLAGS}"
        (_HANDLERS / "register").write_text(line)
