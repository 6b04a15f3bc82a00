"""What a host is: its distro, kernel, engines and what restricts loading modules.

Reads files under a root and nothing else, so it works on a running host, on another host's mounted
root and on the trees of the tests. Imports no heavy library: ``provision facts`` answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.host.facts import Distro, Engine, Facts, read_facts
    from provision.host.kernels import kernel_order
    from provision.host.pci import PciDevice

__all__ = ["Distro", "Engine", "Facts", "PciDevice", "kernel_order", "read_facts"]
_MODULES = {
    "Engine": "facts",
    "Distro": "facts",
    "Facts": "facts",
    "read_facts": "facts",
    "kernel_order": "kernels",
    "PciDevice": "pci",
}


def __getattr__(name: str) -> object:
    """Load what is asked for: who only wants to know the kernels doesn't wait for the rest."""
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
