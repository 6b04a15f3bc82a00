"""What is wanted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A driver for a kernel. The distro and its architecture are those of the index.

    Attributes:
        kernel: The kernel's release, as ``uname -r`` prints it.
        architecture: The kernel's architecture, as ``uname -m`` prints it.
        version: The driver's version; None: the newest that is offered and fits the kernel.
        flavour: One of the recipe's flavours; None: its default.
        force: Whether to go on where the recipe doesn't know the kernel.
    """

    kernel: str
    architecture: str
    version: str | None = None
    flavour: str | None = None
    force: bool = False
