"""PCI devices of a host, and their addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from provision.files import in_root

# NVML writes eight digits and capital letters, the kernel at least four.
_ADDRESS = re.compile(
    r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,2}):([01]?[0-9a-fA-F])\.([0-7])", re.ASCII
)
_CLASS_DIGITS = 4


def pci_address(text: str) -> str | None:
    """Return an address as sysfs writes it; None: it is not one.

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


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI device; ids are hexadecimal, as ``lspci -n`` prints them.

    Attributes:
        address: Such as ``0000:01:00.0``.
        vendor: Who made it.
        device: What it is.
        device_class: Which kind of device it is: class and subclass.
        driver: The kernel driver that has it; None: none.
    """

    address: str
    vendor: str
    device: str
    device_class: str
    driver: str | None


def pci_devices(root: Path) -> tuple[PciDevice, ...]:
    """Return the PCI devices by address.

    Source: https://docs.kernel.org/PCI/sysfs-pci.html
    """
    folder = in_root(root, "sys/bus/pci/devices")
    try:
        addresses = sorted(path.name for path in folder.iterdir())
    except OSError:
        return ()
    found = (_device(in_root(root, f"sys/bus/pci/devices/{name}"), name) for name in addresses)
    return tuple(device for device in found if device is not None)


def _device(folder: Path, address: str) -> PciDevice | None:
    try:
        vendor, device, kind = (_hex(folder / name) for name in ("vendor", "device", "class"))
    except OSError:
        # It was unplugged meanwhile.
        return None
    link = folder / "driver"
    driver = link.readlink().name if link.is_symlink() else None
    return PciDevice(address, vendor, device, kind[:_CLASS_DIGITS], driver)


def _hex(path: Path) -> str:
    return path.read_text().strip().removeprefix("0x")
