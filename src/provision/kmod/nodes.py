"""Device nodes, and links in ``/dev/char``, that a driver doesn't make itself.

NVIDIA's modules register no devices with the kernel's driver core, so neither devtmpfs nor udev
makes their nodes. The links are what runc with systemd's cgroup driver finds a device by (DESIGN:
NVML "Unknown Error"). Which nodes there are is the recipe's knowledge: ``[[host.nodes]]``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.errors import ProvisionError
from provision.files import glob_in_root, in_root, switch_symlink
from provision.manifest import DeviceNode, Manifest
from provision.progress import Note, Progress, silent

# Makes a node: path, mode with type, device number; ``os.mknod``.
Mknod = Callable[[Path, int, int], None]


@dataclass(frozen=True, slots=True)
class Node:
    """A device node that should be there: its path below ``/dev``, numbers, permission bits."""

    name: str
    major: int
    minor: int
    mode: int


def wanted_nodes(manifest: Manifest, *, root: Path = Path("/")) -> list[Node]:
    """Return the nodes that an artifact's loaded modules need; none for those not loaded."""
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
    """Return the wanted nodes that are not there, or are another device's."""
    return [node for node in wanted_nodes(manifest, root=root) if not _is_there(root, node)]


def make_nodes(
    manifest: Manifest,
    *,
    root: Path = Path("/"),
    progress: Progress = silent,
    mknod: Mknod = os.mknod,
) -> tuple[str, ...]:
    """Make the nodes and links that an artifact's loaded modules need.

    Args:
        manifest: The artifact's.
        root: Root of the running host.
        progress: Receives a note of each node that is made.
        mknod: Makes a node.

    Returns:
        The nodes that were made, as paths on the host.

    Raises:
        ProvisionError: The nodes can't be made.
    """
    made = []
    for node in wanted_nodes(manifest, root=root):
        if not _is_there(root, node):
            progress(Note(f"make /dev/{node.name} ({node.major}:{node.minor})"))
            _make(root, node, mknod)
            made.append(f"/dev/{node.name}")
        link = in_root(root, f"dev/char/{node.major}:{node.minor}", follow=False)
        place = in_root(root, f"dev/{node.name}", follow=False)
        switch_symlink(link, os.path.relpath(place, link.parent))
    return tuple(made)


def remove_nodes(manifest: Manifest, *, root: Path = Path("/")) -> tuple[str, ...]:
    """Remove the nodes of modules that are not loaded any more, and their links.

    Returns:
        The nodes that were removed, as paths on the host.
    """
    majors = _majors(root)
    removed = []
    for rule in manifest.host.nodes:
        if rule.major in majors or rule.major in majors.values():
            continue
        pattern = re.compile(re.escape(rule.name).replace(r"\{minor\}", r"\d+"))
        for found in glob_in_root(root, str(PurePosixPath("dev", rule.name).parent / "*")):
            path = in_root(root, found, follow=False)
            name = str(found.relative_to("dev"))
            if pattern.fullmatch(name) and stat.S_ISCHR(path.lstat().st_mode):
                numbers = path.lstat().st_rdev
                number = f"{os.major(numbers)}:{os.minor(numbers)}"
                link = in_root(root, f"dev/char/{number}", follow=False)
                link.unlink(missing_ok=True)
                path.unlink()
                removed.append(f"/dev/{name}")
    return tuple(removed)


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
    """Return the names and minor numbers of a rule's nodes."""
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


def _make(root: Path, node: Node, mknod: Mknod) -> None:
    """Make a node under its name by one rename, so that no one finds it half made."""
    path = in_root(root, f"dev/{node.name}", follow=False)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        mknod(draft, stat.S_IFCHR | node.mode, os.makedev(node.major, node.minor))
        draft.chmod(node.mode)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ProvisionError(
            f"The device node '{path}' could not be made: {error.strerror}.",
            resolution="Run the command as root, on the host itself.",
        ) from error
