"""`systemctl daemon-reload` under running containers, with runc's systemd cgroup driver."""

from __future__ import annotations

from pathlib import Path

from kit.daemon_reload import KEPT, SCRIPT, TAKEN_BACK, parse
from kit.probe import is_root, need, need_programs
from kit.product import DECORATOR
from kit.systemd import SystemdContainer


def test_devices_outlive_a_reload_of_systemd() -> None:
    need(is_root(), "root", "run as root")
    need_programs("podman", "runc", "debootstrap")
    before = _hierarchies()
    with SystemdContainer(("c 1:11 rwm", "c 120:* rwm")) as machine:
        said = parse(machine(SCRIPT, DECORATOR.parent, "runc").stdout)
    assert said["before spec"] == said["before hook"] == KEPT
    assert said["after spec"] == KEPT
    # The manual says so of the hook; and it shows that the reload does what it is feared for.
    assert said["after hook"] == TAKEN_BACK
    # systemd in a container is not the machine's.
    assert _hierarchies() == before


def _hierarchies() -> list[str]:
    """Which controller is in which hierarchy, and what there is where they are mounted."""
    controllers = [line.split()[:2] for line in Path("/proc/cgroups").read_text().splitlines()]
    mounted = [path.name for path in Path("/sys/fs/cgroup").iterdir()]
    return sorted([" ".join(words) for words in controllers] + mounted)
