"""Rows about a trial: an artifact's kernel, booted in a virtual machine that loads its modules."""

from __future__ import annotations

from statistics import median

from bench.rows import Group, Row
from bench.scene import TARGET, Scene
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.probe import need_programs
from kit.product import BUILD_NETWORK

_ROUNDS = 3
_SMALL = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)
# Row, target in seconds, what is built.
_ROWS = (("trial", 6.0, _SMALL), ("trial-nvidia", 10.0, TARGET))


def _trials(scene: Scene) -> list[Row]:
    """From QEMU's start to its end; the kernel is downloaded before, and once."""
    need_programs("qemu-system-x86_64")
    rows = []
    for name, target, words in _ROWS:
        image = scene.provision.build(*words)["image"]
        said = [
            scene.provision.json("verify", "--boot", image, *BUILD_NETWORK)["boot"]
            for _ in range(_ROUNDS)
        ]
        seconds = [one["seconds"] for one in said]
        modules = ", ".join(f"{one['module']} {one['state']}" for one in said[-1]["outcomes"])
        note = f"{said[-1]['accelerator']}; {min(seconds):g} to {max(seconds):g} s; {modules}"
        what = f"modules of {words[0]} tried in their kernel, in a virtual machine"
        rows.append(Row(name, what, median(seconds), target, "s", note))
    return rows


GROUPS = (Group(("trial", "trial-nvidia"), _trials),)
