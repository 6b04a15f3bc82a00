"""What others call the architectures that ``uname -m`` prints."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from provision.errors import NotFoundError


class ArchitectureNames(NamedTuple):
    """The names of one architecture."""

    # Of images and Kubernetes. Source:
    # https://github.com/containerd/platforms/blob/v1.0.0/database.go
    go: str
    debian: str
    # Of library folders. Source: https://wiki.debian.org/Multiarch/Tuples
    multiarch: str
    # Of folders below ``arch/`` of the kernel, whose Makefile takes x86_64 for x86.
    kernel: str
    # Of conditions and extensions: systemd.unit(5), ConditionArchitecture.
    systemd: str


ARCHITECTURES = MappingProxyType(
    {
        "x86_64": ArchitectureNames("amd64", "amd64", "x86_64-linux-gnu", "x86_64", "x86-64"),
        "aarch64": ArchitectureNames("arm64", "arm64", "aarch64-linux-gnu", "arm64", "arm64"),
        "ppc64le": ArchitectureNames(
            "ppc64le", "ppc64el", "powerpc64le-linux-gnu", "powerpc", "ppc64-le"
        ),
        "s390x": ArchitectureNames("s390x", "s390x", "s390x-linux-gnu", "s390", "s390x"),
        "riscv64": ArchitectureNames("riscv64", "riscv64", "riscv64-linux-gnu", "riscv", "riscv64"),
    }
)
MACHINE_OF_GO = MappingProxyType({names.go: machine for machine, names in ARCHITECTURES.items()})


def names_of(machine: str) -> ArchitectureNames:
    """Return the names of a machine."""
    known = ARCHITECTURES.get(machine)
    if known is None:
        raise NotFoundError(
            f"The architecture '{machine}' is not supported.",
            resolution=f"There are {', '.join(ARCHITECTURES)}.",
        )
    return known


def machine_of(name: str) -> str:
    """Return what ``uname -m`` prints on an architecture that is named so, or as by Go."""
    machine = MACHINE_OF_GO.get(name, name)
    names_of(machine)
    return machine
