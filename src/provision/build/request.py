"""What is wanted."""

from __future__ import annotations

from dataclasses import dataclass

from provision.distros.kernel_tree.tree_family import Toolchain
from provision.pin import DistroPin, TreePin


@dataclass(frozen=True, slots=True)
class Request:
    """A driver for a kernel. The distro and its architecture are those of the index.

    Attributes:
        kernel: The kernel's release, as ``uname -r`` prints it.
        architecture: The kernel's architecture, as ``uname -m`` prints it.
        version: The driver's version, or a branch of it (``535``, ``0.12``), which stands for its
            newest version that fits the kernel, or a kind of branch (``lts``); None: the newest of
            all that fits.
        branches: The branches that are of the kind that ``version`` names, in the order of
            preference; None: it names none.
        published: Versions whose files the vendor has, for sources that take any version.
        flavour: One of the recipe's flavours; None: its default.
        prefer: A version to stay with, as long as it is offered, asked for and fits the kernel.
        force: Whether to go on where the recipe doesn't know the kernel.
    """

    kernel: str
    architecture: str
    version: str | None = None
    branches: tuple[str, ...] | None = None
    published: tuple[str, ...] = ()
    flavour: str | None = None
    prefer: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class KernelTree:
    """A kernel tree in place of packages with headers.

    Attributes:
        pin: What the Pin says of it.
        distro: The distro that the kernel comes from.
        toolchain: What compiles in it.
    """

    pin: TreePin
    distro: DistroPin
    toolchain: Toolchain
