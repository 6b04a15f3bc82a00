"""The kit for a machine with an NVIDIA GPU, run on machines whose GPUs aren't there.

A machine with a card comes by chance and for minutes: nothing of the kit may fail there for the
first time. What a sandbox refuses, a row refuses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from kit.gpu_host import GpuHost
from kit.gpu_kit import make_kit
from kit.gpus import plain_gpus
from kit.probe import can_mount, find_program, need, need_programs

pytestmark = pytest.mark.minutes(3)

_PASSED, _FAILED, _NOT = "passed", "failed", "not possible here"
# What a test can't know: whether this machine has its kernel's configuration.
_EITHER = f"{_PASSED} or {_NOT}"
_ALWAYS = {
    "6 *": _EITHER,
    "4 vectorAdd compiled by nvcc": _PASSED if find_program("nvcc") else _NOT,
    "4 *by nvcc": _NOT,
    # Neither theirs nor ours is at fault where NVIDIA's programs do not find the stand-in's parts.
    "5 NVIDIA's *": _EITHER,
}
_ONE_GPU = {"3 *: one of several GPUs *": _NOT, "3 *: one MIG part *": _NOT}
_UNDIVIDED = {"3 *: one MIG part *": _NOT}
_NO_CONTAINER = {
    "0 containers can be started": _NOT,
    "[34] hook: *": _NOT,
    "[34] nvidia-container-runtime-hook: *": _NOT,
    "5 start times": _NOT,
}
# It lets devices in by a container's own cgroup, where there is one.
_NO_HOOK = {
    check: _NOT
    for name in ("hook", "nvidia-container-runtime-hook")
    for check in (f"3 {name}: [!n]*", f"3 {name}: nvidia-smi*", f"4 {name}: *")
}
_NO_MOUNTS = ("CAP_SYS_ADMIN",)
_LOCAL = "usr/local/nvidia"

# A machine, how it starts containers, and what ends otherwise than well there.
_MACHINES: dict[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "two GPUs, one divided": ({}, "runc", {}),
    "below /usr/local/nvidia": (
        {"libraries": f"{_LOCAL}/lib64", "programs": f"{_LOCAL}/bin", "facts": plain_gpus(1)},
        "runc",
        _ONE_GPU,
    ),
    "below /run/nvidia/driver, cgroups read-only": (
        {"driver": "run/nvidia/driver", "has_cgroups": False, "facts": plain_gpus(2)},
        "runc without cgroups",
        {"5 NVIDIA's cdi generate*": _PASSED, **_NO_HOOK, **_UNDIVIDED},
    ),
    "no mounts": ({"without": _NO_MOUNTS}, "chroot", _NO_CONTAINER),
    "neither mounts nor nodes": (
        {"without": (*_NO_MOUNTS, "CAP_MKNOD")},
        "chroot",
        {**_NO_CONTAINER, "3 *: nothing without a request": _PASSED, "[34] *: *": _NOT},
    ),
    # Without it, nothing of ours sees that the driver is loaded.
    "no /proc/driver/nvidia": (
        {"has_proc": False, "facts": plain_gpus(2)},
        "runc",
        {"1 provision devices *": _NOT, "3 *: one of several GPUs *": _NOT, **_UNDIVIDED},
    ),
    "a driver that says and does what is wrong": (
        {"facts": plain_gpus(1), "reported": plain_gpus(2), "is_right": False},
        "runc",
        {"1 *": _FAILED, "4 vectorAdd compiled*": _NOT, "4 *": _FAILED, **_ONE_GPU},
    ),
    "no nvidia-smi": (
        {"has_smi": False, "facts": plain_gpus(1)},
        "runc",
        {"1 *": _NOT, "3 *: nvidia-smi -L is the host's": _NOT, **_ONE_GPU},
    ),
}
_DAILY = ("two GPUs, one divided", "no mounts")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make gpu-kit` makes it."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    need_programs("go", "gcc", "unshare")
    return make_kit(tmp_path_factory.mktemp("gpu") / "kit")


def _expected(check: str, ends: Mapping[str, str]) -> list[str]:
    """How a check may end: as the first pattern says."""
    found = (end for pattern, end in ends.items() if fnmatchcase(check, pattern))
    return next(found, _PASSED).split(" or ")


@pytest.mark.parametrize(
    "name",
    [
        name if name in _DAILY else pytest.param(name, marks=pytest.mark.nightly)
        for name in _MACHINES
    ],
)
def test_each_check_ends_as_the_machine_lets_it(kit: Path, tmp_path: Path, name: str) -> None:
    options, containers_by, otherwise = _MACHINES[name]
    machine = GpuHost(tmp_path, **options).make()
    done = machine(kit, ["/bin/sh", "/kit/run", "--output", "/out"], limit_s=600)
    record = json.loads((machine.out / "record.json").read_text())
    outcomes = {f"{one['number']} {one['title']}": one["outcome"] for one in record["checks"]}
    ends = {**otherwise, **_ALWAYS}
    wrong = {check for check, end in outcomes.items() if end not in _expected(check, ends)}
    assert not wrong, done.output
    assert {int(check[0]) for check in outcomes} == {0, 1, 2, 3, 4, 5, 6}
    assert record["containers_by"] == containers_by
    assert done.returncode == (1 if _FAILED in outcomes.values() else 0)
    page = (machine.out / "record.md").read_text()
    assert all(f"| {check} | {outcome} |" in page for check, outcome in outcomes.items())
    # Nothing of it stays.
    assert not list((machine.root / "var/tmp").iterdir())
    assert not [
        path for path in ("run", "etc", "var/lib") if list((machine.root / path).glob("provision*"))
    ]


def test_a_machine_without_a_driver_has_nothing_that_could_be_seen(
    kit: Path, tmp_path: Path
) -> None:
    machine = GpuHost(tmp_path, libraries="opt/nowhere", has_smi=False, has_proc=False).make()
    done = machine(kit, ["/bin/sh", "/kit/run", "--output", "/out"], limit_s=600)
    record = json.loads((machine.out / "record.json").read_text())
    failed = [one for one in record["checks"] if one["outcome"] == _FAILED]
    assert not failed
    assert "gpus" not in record
    assert done.returncode == 3
    assert "no driver was found" in done.stdout
