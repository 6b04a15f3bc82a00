"""Collects the facts of a vendor's devices and writes them down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.documents import load_json
from provision.host.devices.device_facts import Facts
from provision.host.devices.drm import AMD, INTEL, drm_facts
from provision.host.devices.nvidia import nvidia_facts
from provision.host.devices.record import facts_path, recording, remove_facts, write_facts

# Those that any host may have, however their drivers were installed. NVML's library is looked for
# in the folders that are given.
_SOURCES: Mapping[str, Callable[[Path, Sequence[Path]], Facts | None]] = {
    "nvidia": nvidia_facts,
    "amd": lambda root, _libraries: drm_facts(root, AMD),
    "intel": lambda root, _libraries: drm_facts(root, INTEL),
}
VENDORS = tuple(_SOURCES)


@dataclass(frozen=True, slots=True)
class Collected:
    """What was collected for a vendor.

    Attributes:
        vendor: Whose devices; the name of its file.
        facts: What is known; None: there is no such device, and so no file.
        changed: Whether the file is another than before.
    """

    vendor: str
    facts: Facts | None
    changed: bool

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be found out."""
        return self.facts.problems if self.facts else ()


def collect(
    root: Path, vendor: str, *, source: str | None = None, libraries: Sequence[Path] = ()
) -> Collected:
    """Collect the facts of a vendor's devices and write them down, or remove what was.

    Args:
        root: Root of the host.
        vendor: The name of the file.
        source: Whose devices are meant, of ``VENDORS``; None: those of that name.
        libraries: Where NVIDIA's library may lie besides the host's own folders.

    Raises:
        InUseError: Another process collects for too long.
        OSError: /run can't be written.
    """
    with recording(root):
        facts = _SOURCES[source or vendor](root, libraries)
        changed = remove_facts(root, vendor) if facts is None else write_facts(root, vendor, facts)
    return Collected(vendor, facts, changed)


def read_facts_file(root: Path, vendor: str) -> Facts:
    """Return what is written down of a vendor's devices.

    Raises:
        NotFoundError: Nothing is.
        ConfigError: The file is not what its schema says.
    """
    return load_json(facts_path(root, vendor), Facts)
