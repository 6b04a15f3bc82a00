"""Facts of AMD's and Intel's GPUs, from what the kernel says of render nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.host.devices.device_facts import Device, Facts
from provision.host.devices.kernel_text import kernel_text, minor_number
from provision.host.devices.pci_address import pci_address, pci_order
from provision.rootfs import glob_in_root, in_root

_NODE = re.compile(r"renderD([0-9]+)", re.ASCII)
_UNIQUE = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.ASCII)


@dataclass(frozen=True, slots=True)
class DrmVendor:
    """Whose GPUs are meant.

    Attributes:
        pci: Its PCI id.
        module: The kernel's driver, which may have a version of its own.
    """

    pci: str
    module: str


AMD = DrmVendor("0x1002", "amdgpu")
INTEL = DrmVendor("0x8086", "i915")


def drm_facts(root: Path, vendor: DrmVendor) -> Facts | None:
    """Return what is known of a vendor's GPUs; None: there are none.

    A node that belongs to no PCI device of its own (a partition of an AMD GPU) is left out.

    Args:
        root: Root of the host.
        vendor: Whose.

    Source: https://docs.kernel.org/gpu/drm-uapi.html, https://docs.kernel.org/gpu/amdgpu/
    """
    found = []
    for path in glob_in_root(root, "sys/class/drm/renderD*"):
        node = _NODE.fullmatch(path.name)
        folder = in_root(root, path / "device")
        address = pci_address(folder.name)
        minor = minor_number(node[1]) if node else None
        if minor is not None and address and _text(folder / "vendor") == vendor.pci:
            found.append((pci_order(address), address, minor, folder))
    if not found:
        return None
    devices = [
        Device(
            index=i,
            minor=minor,
            pci=address,
            uuid=parse_unique_id(_text(folder / "unique_id") or ""),
            name=_text(folder / "product_name") or None,
        )
        for i, (_order, address, minor, folder) in enumerate(sorted(found, key=lambda row: row[:3]))
    ]
    version = _text(in_root(root, PurePosixPath("sys/module", vendor.module, "version")))
    return Facts(source="sysfs", driver_version=version or None, devices=tuple(devices))


def parse_unique_id(text: str) -> str | None:
    """Return the UUID that ROCm gives to a GPU, from amdgpu's ``unique_id``. Pure.

    Source: https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    """
    match = _UNIQUE.fullmatch(text.strip().lower())
    if match is None or not int(match[1], 16):
        return None
    return f"GPU-{match[1]:0>16}"


def _text(path: Path) -> str | None:
    text = kernel_text(path)
    return None if text is None else "".join(c for c in text if c.isprintable()).strip()
