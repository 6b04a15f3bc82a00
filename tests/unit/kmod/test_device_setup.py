"""Device nodes, and links in /dev/char, that a driver leaves to others."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from kit.artifact import make_artifact, write
from provision.catalogue import Catalogue
from provision.config import catalogue_folders
from provision.kmod.loader import required_nodes
from provision.manifest import DeviceNode, Manifest, MinorsFrom

# Of a machine with NVIDIA's 535 and two GPUs.
DEVICES = """\
Character devices:
  1 mem
195 nvidia-frontend
235 nvidia-caps
511 nvidia-uvm

Block devices:
  8 sd
"""
INFORMATION = (
    "Model: \t\t NVIDIA A10\nIRQ:   \t\t 136\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
)


@pytest.fixture
def nvidia(tmp_path: Path) -> Manifest:
    """A manifest with the nodes of the shipped recipe."""
    recipe = Catalogue(catalogue_folders()).entry("nvidia").recipe
    return make_artifact(tmp_path / "entry").model_copy(update={"host": recipe.host})


def _machine(root: Path, *minors: int, devices: str = DEVICES) -> Path:
    write(root / "proc/devices", devices.encode())
    for minor in minors:
        path = root / f"proc/driver/nvidia/gpus/0000:0{minor}:00.0/information"
        write(path, INFORMATION.format(minor=minor).encode())
    return root


def test_nvidias_nodes_are_those_of_its_gpus(nvidia: Manifest, tmp_path: Path) -> None:
    nodes = required_nodes(nvidia, root=_machine(tmp_path, 0, 1))
    assert {(node.name, node.major, node.minor) for node in nodes} == {
        ("nvidiactl", 195, 255),
        ("nvidia-modeset", 195, 254),
        ("nvidia0", 195, 0),
        ("nvidia1", 195, 1),
        ("nvidia-uvm", 511, 0),
        ("nvidia-uvm-tools", 511, 1),
    }


def test_a_driver_that_is_not_loaded_has_no_nodes(nvidia: Manifest, tmp_path: Path) -> None:
    none = "Character devices:\n  1 mem\n"
    assert required_nodes(nvidia, root=_machine(tmp_path, devices=none)) == []
    assert required_nodes(nvidia, root=tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": "a", "major": 1}, "either 'minor' or 'each'"),
        (
            {"name": "a", "major": 1, "each": MinorsFrom(files="proc/x", field="F")},
            "must hold '{minor}'",
        ),
        ({"name": "a{minor}", "major": 1, "minor": 2}, "must hold '{minor}'"),
        ({"name": "../a", "major": 1, "minor": 2}, "should match pattern"),
        ({"name": "a", "major": 1, "minor": 2, "mode": "999"}, "should match pattern"),
    ],
)
def test_a_rule_that_makes_no_sense_is_a_mistake(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        DeviceNode.model_validate(fields)
