"""What devices need besides loaded modules: firmware that the kernel finds, and device nodes.

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.errors import ProvisionError
from provision.files import glob_in_root, in_root, switch_symlink
from provision.manifest import DeviceNode, Manifest
from provision.progress import Note, Progress, silent

FIRMWARE_FOLDER = PurePosixPath("run/provision/firmware")
FIRMWARE_PARAMETER = PurePosixPath("sys/module/firmware_class/parameters/path")
_PREFIXES = ("/usr/lib/firmware/", "/lib/firmware/")


def offer_firmware(entry: Path, manifest: Manifest, *, root: Path = Path("/")) -> bool:
    """Link an artifact's firmware into the folder that the kernel looks into.

    Args:
        entry: The artifact's folder.
        manifest: Its manifest.
        root: Root of the running host.

    Returns:
        Whether the artifact has firmware.

    Raises:
        ProvisionError: Another folder is configured, so the kernel would not look into ours.
        OSError: The folder can't be written.
    """
    names = firmware_names(manifest)
    if not names:
        return False
    ours = f"/{FIRMWARE_FOLDER}"
    current = configured_folder(root)
    if current not in {"", ours}:
        raise ProvisionError(
            f"The kernel looks for firmware in '{current}', which someone else has set.",
            resolution=f"Remove firmware_class.path={current} from the kernel's command line (or"
            f" from whatever writes /{FIRMWARE_PARAMETER}), or copy the driver's firmware there and"
            " to /lib/firmware.",
        )
    real = entry.resolve()
    for name, path in names.items():
        target = f"/{(real / path).relative_to(root.resolve())}"
        switch_symlink(in_root(root, FIRMWARE_FOLDER / name, follow=False), target)
    if current != ours:
        # This is a parameter of the kernel and can't be replaced by a rename.
        in_root(root, FIRMWARE_PARAMETER).write_text(ours)
    return True


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


# Makes a node from its path, its mode with the type, and its device number, as ``os.mknod`` does.
Mknod = Callable[[Path, int, int], None]


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


def make_nodes(
    manifest: Manifest,
    *,
    root: Path = Path("/"),
    progress: Progress = silent,
    mknod: Mknod = os.mknod,
) -> tuple[str, ...]:
    """Make the nodes and links that an artifact's loaded modules need.

    Args:
        manifest: The artifact's manifest.
        root: Root of the running host.
        progress: Receives a note of each node that is made.
        mknod: Makes a node.

    Returns:
        The new nodes, as paths on the host.

    Raises:
        ProvisionError: The nodes can't be made.
    """
    made = []
    for node in required_nodes(manifest, root=root):
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
        The removed nodes, as paths on the host.
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
    """Make a node and rename it to its name, so that it appears with its permissions."""
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
