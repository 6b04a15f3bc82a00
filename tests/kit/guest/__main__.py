"""`python -m kit.guest FOLDER`: a shell in a guest that a failed test has kept."""

from __future__ import annotations

import sys
from pathlib import Path

from kit.guest.guest import Base, Guest

if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1], "disk.qcow2").is_file():
        sys.exit("usage: python -m kit.guest FOLDER, which a failed test has named")
    kept = Path(sys.argv[1])
    with Guest(Base((kept / "base").resolve()), snapshot=kept / "disk.qcow2") as guest:
        guest.open_shell()
