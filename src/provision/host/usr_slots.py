"""The /usr that a Flatcar host does not run: the slot that an update was written to."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from provision.rootfs import in_root
from provision.run import run

_PARTITIONS = "dev/disk/by-partlabel"
_SECONDS = 900.0
# In a mount namespace of its own, so that whatever ends this, nothing stays mounted. No link: one
# to /usr would lead into the /usr that runs.
_SCRIPT = """\
set -e
device=$1 mounted=$2 folder=$3 draft=$4 known=$5
shift 5
mount -o ro "$device" "$mounted"
if [ ! -d "$mounted/$folder" ] || [ -L "$mounted/$folder" ]; then echo absent; exit; fi
# Of each file: name, kind, mode, size, both times of change, inode, and where a link leads.
cd "$mounted/$folder"
found=$(find . -printf '%P\\0%y %m %s %T@ %C@ %i %l\\0' | sort -z | sha256sum)
echo "${found%% *}"
[ "${found%% *}" != "$known" ] || exit 0
exec tar --create "$@" --file "$draft" --directory "$mounted/$folder" .
"""
_ABSENT = "absent"


def other_slot(root: Path) -> Path | None:
    """Return the device of the /usr that is not booted; None: the host has no such slots.

    Source: https://www.flatcar.org/docs/latest/reference/developer-guides/sdk-disk-partitions/
    """
    try:
        booted = in_root(root, "proc/cmdline").read_text()
    except OSError:
        return None
    other = "A" if re.search(r"BOOT_IMAGE=\S*vmlinuz-b\b", booted) else "B"
    device = in_root(root, f"{_PARTITIONS}/USR-{other}", follow=False)
    return device if device.exists() else None


def pack_from_slot(
    root: Path, folder: str, draft: Path, options: Sequence[str], *, known: str | None = None
) -> str | None:
    """Pack a folder of the slot that is not booted into a tar file, unless its state is known.

    Args:
        root: Root of the host.
        folder: Relative to that /usr.
        draft: The tar file.
        options: Further options of tar.
        known: Fingerprint of a state that need not be packed.

    Returns:
        Fingerprint of the folder's state: nothing was packed if that is the known one. None: the
        host has no such slot, or the slot no such folder.

    Raises:
        ProvisionError: The slot can't be mounted, or the folder not be packed.
    """
    device = other_slot(root)
    if device is None:
        return None
    with tempfile.TemporaryDirectory(prefix="provision-usr-") as mounted:
        places = [str(device), mounted, folder, str(draft), known or ""]
        shell = ["sh", "-c", _SCRIPT, "sh", *places, *options]
        done = run(
            ["unshare", "--mount", "--propagation", "private", *shell],
            why="read the kernel tree in the slot that boots next",
            timeout=_SECONDS,
        )
    said = done.stdout.strip()
    return None if said == _ABSENT else said
