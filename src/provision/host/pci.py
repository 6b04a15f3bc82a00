"""PCI devices of a host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provision.rootfs import in_root

_CLASS_DIGITS = 4


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
