"""The next kernel of hosts that are updated as a whole: ostree's deployments, Flatcar's slots."""

from __future__ import annotations

import json
import re
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.files import glob_in_root, in_root
from provision.run import run

# "CURRENT_OP=UPDATE_STATUS_UPDATED_NEED_REBOOT": the update is complete and boots next.
_COMPLETE = "UPDATE_STATUS_UPDATED_NEED_REBOOT"
# A kernel image on x86: "HdrS" at 0x202; at 0x20e the version's address, counted from 0x200.
# Source: https://docs.kernel.org/arch/x86/boot.html
_SETUP = 0x200
_MAGIC = (0x202, b"HdrS")
_VERSION = 0x20E
_HEADER_BYTES = 0x8000
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


@dataclass(frozen=True, slots=True)
class PendingKernels:
    """The kernels that may run after the next boot, and what could not be found out."""

    releases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def next_of_ostree(root: Path, status: str | None) -> PendingKernels:
    """Return the kernel of the deployment that boots next.

    Args:
        root: Root of the host.
        status: What ``rpm-ostree status --json`` prints; its deployments are in the order in which
            the boot loader has them, so those before the booted one have been made since.
    """
    try:
        deployments = json.loads(status or "")["deployments"]
        newer = _before_booted(deployments)
        folders = [_deployment(root, deployment) for deployment in newer]
    except (ValueError, KeyError, TypeError):
        return PendingKernels(notes=("'rpm-ostree status --json' does not say what boots next",))
    releases, notes = [], []
    for folder in folders:
        modules = folder / "usr/lib/modules"
        # A deployment is a root of its own.
        found = sorted(
            path.parent.name for path in glob_in_root(folder, "usr/lib/modules/*/vmlinuz")
        )
        releases += found
        if not found:
            notes.append(f"there is no kernel in {modules}")
    return PendingKernels(tuple(dict.fromkeys(releases)), tuple(notes))


def next_of_flatcar(root: Path, status: str | None) -> PendingKernels:
    """Return the kernel of the slot that boots next, if an update waits for its reboot.

    Its updater copies the kernel to the boot partition, as ``vmlinuz-a`` or ``vmlinuz-b``.
    Source: flatcar-postinst in https://github.com/flatcar/update_engine.

    Args:
        root: Root of the host.
        status: What ``update_engine_client -status`` prints.
    """
    fields = dict(re.findall(r"^([A-Z_]+)=(.*)$", status or "", re.MULTILINE))
    if not fields.get("CURRENT_OP", "").startswith("UPDATE_STATUS_"):
        return PendingKernels(notes=("'update_engine_client -status' does not say what is next",))
    if fields["CURRENT_OP"] != _COMPLETE:
        return PendingKernels()
    version = fields.get("NEW_VERSION", "?")
    try:
        booted = in_root(root, "proc/cmdline").read_text()
        other = "a" if re.search(r"BOOT_IMAGE=\S*vmlinuz-b\b", booted) else "b"
        return PendingKernels((image_release(in_root(root, f"boot/flatcar/vmlinuz-{other}")),))
    except (OSError, ValueError) as error:
        return PendingKernels(notes=(f"the kernel of the update {version} can't be read: {error}",))


def image_release(path: Path) -> str:
    """Return the release that a kernel image for x86 says it has.

    Raises:
        ValueError: It is no such image.
        OSError: It can't be read.
    """
    with path.open("rb") as stream:
        head = stream.read(_HEADER_BYTES)
    at, magic = _MAGIC
    if head[at : at + len(magic)] != magic:
        raise ValueError(f"'{path}' is no kernel image for x86")
    (offset,) = struct.unpack_from("<H", head, _VERSION)
    text = head[_SETUP + offset :].split(b"\0", 1)[0].decode("ascii", "replace")
    if not offset or not text:
        raise ValueError(f"'{path}' does not say its version")
    return text.split(" ", 1)[0]


def _before_booted(deployments: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the deployments that the boot loader prefers to the booted one: only the first."""
    first = deployments[:1]
    return [deployment for deployment in first if not deployment["booted"]]


def _deployment(root: Path, deployment: Mapping[str, Any]) -> Path:
    name = f"{deployment['checksum']}.{deployment['serial']}"
    return in_root(root, f"ostree/deploy/{deployment['osname']}/deploy/{name}")


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
