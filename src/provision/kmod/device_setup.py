"""What devices need besides loaded modules: firmware that the kernel finds, and device nodes.

The loader makes both; here is found out what is missing.

The firmware of an artifact lies in the store and not below /lib. The kernel looks into one folder
of our choice before its own: https://docs.kernel.org/driver-api/firmware/fw_search_path.html. That
folder is made again at each load, on a file system that a reboot empties, and holds links into the
store.

NVIDIA's modules register no devices with the kernel's driver core, so neither devtmpfs nor udev
makes their nodes. runc with systemd's cgroup driver finds a device by its link in ``/dev/char``;
without it, NVML fails with "Unknown Error". The recipe says which nodes there are:
``[[host.nodes]]``.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.files import glob_in_root, in_root
from provision.manifest import DeviceNode, Manifest

FIRMWARE_FOLDER = PurePosixPath("run/provision/firmware")
FIRMWARE_PARAMETER = PurePosixPath("sys/module/firmware_class/parameters/path")
_PREFIXES = ("/usr/lib/firmware/", "/lib/firmware/")


def firmware_names(manifest: Manifest) -> dict[str, str]:
    """Return the path in the artifact of each firmware file, by the name that the kernel uses."""
    return {
        file.path.removeprefix(prefix): f"driver{file.path}"
        for file in manifest.files
        for prefix in _PREFIXES
        if file.kind == "firmware" and file.path.startswith(prefix)
    }


def configured_folder(root: Path) -> str:
    """Return the folder that the kernel looks into before its own; empty if none is configured."""
    try:
        return in_root(root, FIRMWARE_PARAMETER).read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Node:
    """A device node: its path below ``/dev``, its numbers and its permission bits."""

    name: str
    major: int
    minor: int
    mode: int


def required_nodes(manifest: Manifest, *, root: Path = Path("/")) -> list[Node]:
    """Return the nodes that an artifact's loaded modules need."""
    majors = _majors(root)
    found = []
    for rule in manifest.host.nodes:
        major = majors.get(rule.major) if isinstance(rule.major, str) else rule.major
        if major is None or major not in majors.values():
            continue
        mode = int(rule.mode, 8)
        found += [Node(name, major, minor, mode) for name, minor in _numbered(rule, root)]
    return found


def missing_nodes(manifest: Manifest, *, root: Path = Path("/")) -> list[Node]:
    """Return the required nodes that are missing or have another device's numbers."""
    return [node for node in required_nodes(manifest, root=root) if not _is_there(root, node)]


def _majors(root: Path) -> dict[str, int]:
    """Return the major numbers of character devices by name.

    Source: proc(5), /proc/devices.
    """
    try:
        text = in_root(root, "proc/devices").read_text()
    except OSError:
        return {}
    section = text.partition("Character devices:")[2].partition("Block devices:")[0]
    rows = [line.split(maxsplit=1) for line in section.splitlines() if line.strip()]
    return {name.strip(): int(number) for number, name in rows}


def _numbered(rule: DeviceNode, root: Path) -> list[tuple[str, int]]:
    if rule.each is None:
        return [(rule.name, rule.minor or 0)]
    field = re.compile(rf"^{re.escape(rule.each.field)}\s*:\s*(\d+)\s*$", re.MULTILINE)
    places = [in_root(root, name) for name in glob_in_root(root, rule.each.files)]
    texts = [path.read_text() for path in places if path.is_file()]
    numbers = [int(match[1]) for text in texts if (match := field.search(text))]
    return [(rule.name.replace("{minor}", str(number)), number) for number in numbers]


def _is_there(root: Path, node: Node) -> bool:
    try:
        status = in_root(root, f"dev/{node.name}", follow=False).lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(node.major, node.minor)
