"""What daemon_reload.sh prints, for the one who runs it: a container with systemd, or a guest."""

from __future__ import annotations

from kit.cache import REPOSITORY
from kit.standins import ALLOWED, DENIED

SCRIPT = REPOSITORY / "tests/kit/daemon_reload.sh"

# Nodes of a container → what opening them says; `kmsg` is one that opens.
Nodes = dict[str, str]
KEPT: Nodes = {"kmsg": "", "linked": ALLOWED}
TAKEN_BACK: Nodes = {"kmsg": DENIED, "linked": DENIED}


def parse(output: str) -> dict[str, Nodes]:
    """The output as `"before spec"` → node → what opening it says."""
    found: dict[str, Nodes] = {}
    for line in output.splitlines():
        place, _, said = line.partition(":")
        moment, container, node = place.split()
        found.setdefault(f"{moment} {container}", {})[node] = said.strip()
    return found
