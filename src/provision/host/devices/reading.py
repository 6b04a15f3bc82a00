"""The facts of devices of all vendors, and their files, one a vendor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.documents import load_json
from provision.errors import NotFoundError, ProvisionError, UsageError
from provision.files import glob_in_root, in_root, lock, remove_drafts, write_atomic
from provision.host.devices.device_facts import Device, Facts, kernel_text, minor_number
from provision.host.devices.nvidia import Smi, nvidia_facts
from provision.host.facts import pci_address, pci_order

FOLDER = PurePosixPath("run/oci-decorator/devices")
_LOCK = PurePosixPath("run/provision/devices.lock")
# Longer than its holder may wait for nvidia-smi, and for a process that can't be killed.
_WAIT_S = 90.0
_NODE = re.compile(r"renderD([0-9]+)", re.ASCII)
_UNIQUE = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.ASCII)


@dataclass(frozen=True, slots=True)
class DrmVendor:
    """A vendor of GPUs that the kernel's DRM drivers serve."""

    pci: str
    # The kernel's driver, which may have its own version.
    module: str


AMD = DrmVendor("0x1002", "amdgpu")
INTEL = DrmVendor("0x8086", "i915")


def drm_facts(root: Path, vendor: DrmVendor) -> Facts | None:
    """Return the facts of a vendor's GPUs; None if there are none.

    A node without a PCI device of its own (a partition of an AMD GPU) is left out.

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


# The vendors whose devices any host may have, however their drivers were installed.
_SOURCES: Mapping[str, Callable[[Path, Sequence[Smi]], Facts | None]] = {
    "nvidia": nvidia_facts,
    "amd": lambda root, _stored: drm_facts(root, AMD),
    "intel": lambda root, _stored: drm_facts(root, INTEL),
}
VENDORS = tuple(_SOURCES)


def facts_path(root: Path, vendor: str) -> Path:
    """Return the file with the facts of a vendor's devices."""
    if not vendor or "/" in vendor or vendor.startswith("."):
        raise UsageError(
            f"'{vendor}' is not a valid name of a vendor.",
            resolution="Name one of those that 'provision devices' lists.",
        )
    return in_root(root, FOLDER) / f"{vendor}.json"


@contextmanager
def recording(root: Path) -> Iterator[None]:
    """Keep other processes from collecting facts, so that older facts never replace newer ones.

    It is held for unloading a driver too: a process that identifies GPUs keeps the driver in use.
    """
    with lock(in_root(root, _LOCK), limit=_WAIT_S):
        yield


def write_facts(root: Path, vendor: str, facts: Facts) -> bool:
    """Write facts, which all users may read; return whether anything changed.

    The caller holds ``recording``.
    """
    path = facts_path(root, vendor)
    remove_drafts(path)
    return write_atomic(path, facts.text(), mode=0o644)


def remove_facts(root: Path, vendor: str) -> bool:
    """Remove the facts of devices whose driver is gone; return whether there were any.

    The caller holds ``recording``.
    """
    path = facts_path(root, vendor)
    remove_drafts(path)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def recorded(root: Path) -> list[str]:
    """Return the vendors with recorded facts."""
    return [path.stem for path in glob_in_root(root, f"{FOLDER}/*.json")]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The result of collecting the facts of a vendor's devices."""

    vendor: str
    facts: Facts | None
    changed: bool

    @property
    def problems(self) -> tuple[str, ...]:
        """What is not known."""
        return self.facts.problems if self.facts else ()


def record_facts(
    root: Path, vendor: str, *, source: str | None = None, stored: Sequence[Smi] = ()
) -> Recorded:
    """Collect the facts of a vendor's devices and write their file, or remove it."""
    with recording(root):
        facts = _SOURCES[source or vendor](root, stored)
        changed = remove_facts(root, vendor) if facts is None else write_facts(root, vendor, facts)
    return Recorded(vendor, facts, changed)


def read_facts_file(root: Path, vendor: str) -> Facts:
    """Return the recorded facts of a vendor's devices."""
    return load_json(facts_path(root, vendor), Facts)


def recorded_problems(root: Path, vendor: str) -> tuple[str, ...]:
    """Return what is not known of a vendor's devices; empty where they have no facts.

    A file that can't be read is a problem too.
    """
    try:
        return read_facts_file(root, vendor).problems
    except NotFoundError:
        return ()
    except (OSError, ProvisionError) as error:
        return (f"the facts of its devices can't be read: {error}",)
