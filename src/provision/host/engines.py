"""Container engines on a host."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import lexists
from pathlib import Path

from provision.rootfs import in_root

# Where programs are: Flatcar's extensions use /opt/bin.
_FOLDERS = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "usr/local/sbin", "opt/bin")
# Name, program of the engine itself, its usual sockets.
_ENGINES = (
    ("docker", "dockerd", ("run/docker.sock",)),
    ("podman", "podman", ("run/podman/podman.sock",)),
    (
        "containerd",
        "containerd",
        ("run/containerd/containerd.sock", "run/k3s/containerd/containerd.sock"),
    ),
    ("cri-o", "crio", ("run/crio/crio.sock",)),
)


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that is installed or answers.

    Attributes:
        name: ``docker``, ``podman``, ``containerd`` or ``cri-o``.
        program: Path of its program on the host; None: it is none of the usual ones.
        socket: Path of its socket on the host; None: it isn't running, or needs no service.
    """

    name: str
    program: str | None
    socket: str | None


def find_engines(root: Path) -> tuple[Engine, ...]:
    """Return the engines of a host, without starting or asking any."""
    engines = []
    for name, program, sockets in _ENGINES:
        found = _first(root, [f"{folder}/{program}" for folder in _FOLDERS])
        socket = _first(root, sockets)
        if found or socket:
            engines.append(Engine(name, found, socket))
    return tuple(engines)


def _first(root: Path, names: tuple[str, ...] | list[str]) -> str | None:
    # A link that leads nowhere counts: what it leads to may be mounted later.
    return next((f"/{n}" for n in names if lexists(in_root(root, n, follow=False))), None)
