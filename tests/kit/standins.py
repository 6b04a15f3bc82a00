"""Nodes and libraries that a vendor file lists: the kernel's own nodes, and libraries by gcc.

A stand-in node has a number that no driver of this kernel has taken. To open it says whether a
container's cgroup lets it: ENXIO ("No such device or address") where it does, EPERM where it
doesn't, and no device is ever touched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kit.files import write
from kit.hosts import Host
from kit.process import run

ALLOWED = "No such device or address"
DENIED = "Operation not permitted"

# Shell: what becomes of an attempt to open each of its arguments, a line each.
OPEN_NODES = 'for node; do echo "$node: $( (: < "$node") 2>&1 | sed "s/.*: //")"; done'

# A vendor file of one feature: a node, a library, an empty folder, and a file.
GPU: dict[str, Any] = {
    "activation_flag": "OCI_GPU",
    "driver_feature": ["run"],
    "inventory": {
        "run": {
            "devices": ["gpu0"],
            "libraries": ["/opt/gpu/lib/libgpu.so.1"],
            "directories": ["/opt/gpu/empty"],
            "miscellaneous": ["/opt/gpu/version"],
        }
    },
}

# "Reserved for local use": https://docs.kernel.org/admin-guide/devices.html
_LOCAL_MAJORS = range(120, 128)


def stand_in(host: Host, document: dict[str, Any], *, content: str = "") -> list[str]:
    """Make every node and file that the vendor file `document` lists; the nodes' names.

    Libraries are real ones, whose soname is their name up to the `.so.N`; other files hold
    `content` and their own path, so that a container can tell which it got. What is there stays.
    """
    nodes: list[str] = []
    for feature in document["inventory"].values():
        nodes += [name for name in feature.get("devices", []) if name not in nodes]
        for path in feature.get("directories", []):
            (host.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for kind in ("binaries", "libraries", "miscellaneous"):
            for path in feature.get(kind, []):
                _file(host.root / path.lstrip("/"), f"{content}{path}\n")
    make_nodes(host.root / "dev", nodes)
    return nodes


def make_nodes(folder: Path, names: Iterable[str]) -> None:
    """Nodes below a folder, each with a number that no driver of this kernel has."""
    major = _free_major()
    taken = len([path for path in folder.rglob("*") if not path.is_dir()])
    for minor, name in enumerate(names, start=taken):
        node = folder / name
        if not node.exists():
            node.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
            node.chmod(0o666)


def _free_major() -> int:
    listed = Path("/proc/devices").read_text().partition("Block devices:")[0]
    taken = {int(line.split()[0]) for line in listed.splitlines() if line[:3].strip().isdigit()}
    return next(major for major in _LOCAL_MAJORS if major not in taken)


def _file(path: Path, content: str) -> None:
    if path.exists():
        return
    if path.name.startswith("lib") and ".so" in path.name:
        make_library(path)
    else:
        write(path, content, 0o755)


def make_library(path: Path, *, compiler: str = "gcc") -> None:
    """A shared library without any code; its soname has at most one number after `.so`."""
    stem, _, version = path.name.partition(".so")
    major = version.lstrip(".").partition(".")[0]
    soname = f"{stem}.so.{major}" if major else path.name
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = ("-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-x", "c")
    run([compiler, *flags, "-o", path, "/dev/null"])
