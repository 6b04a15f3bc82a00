"""PCI addresses. Pure."""

from __future__ import annotations

import re

# NVML writes eight digits and capital letters, the kernel at least four.
_ADDRESS = re.compile(
    r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,2}):([01]?[0-9a-fA-F])\.([0-7])", re.ASCII
)


def pci_address(text: str) -> str | None:
    """Return an address as sysfs writes it; None: it is none.

    Args:
        text: In any usual form, such as ``00000000:0A:00.0``.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def pci_order(address: str) -> tuple[int, ...]:
    """Return what addresses of this module's form are sorted by: their numbers."""
    return tuple(int(part, 16) for part in re.split("[:.]", address))
