"""What a host is: its distro, kernel, engines and what restricts loading modules.

Reads files under a root and nothing else, so it works on a running host, on another host's mounted
root and on the trees of the tests. Imports no heavy library: ``provision facts`` answers at once.
"""

from __future__ import annotations

from provision.host.engines import Engine
from provision.host.facts import Distro, Facts, read_facts
from provision.host.kernel import kernel_order
from provision.host.pci import PciDevice

__all__ = ["Distro", "Engine", "Facts", "PciDevice", "kernel_order", "read_facts"]
