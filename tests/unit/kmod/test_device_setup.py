"""Device nodes, and links in /dev/char, that a driver leaves to others."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from kit.probe import is_root, need
from provision.catalogue import Catalogue, catalogue_folders
from provision.errors import ProvisionError
from provision.kmod.device_setup import make_nodes, missing_nodes, remove_nodes, required_nodes
from provision.manifest import DeviceNode, Manifest, MinorsFrom
from unit.kmod.artifact import make_artifact, write

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
    assert {node.mode for node in nodes} == {0o666}


def test_a_driver_that_is_not_loaded_has_no_nodes(nvidia: Manifest, tmp_path: Path) -> None:
    none = "Character devices:\n  1 mem\n"
    assert required_nodes(nvidia, root=_machine(tmp_path, devices=none)) == []
    assert required_nodes(nvidia, root=tmp_path / "nothing") == []


def test_nodes_and_links_are_made_once_and_removed(nvidia: Manifest, tmp_path: Path) -> None:
    need(is_root(), "root", "only root can make device nodes")
    root = _machine(tmp_path, 0)
    made = make_nodes(nvidia, root=root)
    assert "/dev/nvidia0" in made
    status = (root / "dev/nvidia0").stat()
    assert stat.S_ISCHR(status.st_mode)
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (195, 0)
    assert stat.S_IMODE(status.st_mode) == 0o666
    assert str((root / "dev/char/195:0").readlink()) == "../nvidia0"
    assert make_nodes(nvidia, root=root) == ()
    assert missing_nodes(nvidia, root=root) == []
    # As long as they are loaded, nothing goes.
    assert remove_nodes(nvidia, root=root) == ()
    write(root / "proc/devices", b"Character devices:\n  1 mem\n")
    assert set(remove_nodes(nvidia, root=root)) == set(made)
    assert list((root / "dev/char").iterdir()) == []


def test_a_node_of_another_number_is_replaced(nvidia: Manifest, tmp_path: Path) -> None:
    need(is_root(), "root", "only root can make device nodes")
    root = _machine(tmp_path)
    (root / "dev").mkdir()
    os.mknod(root / "dev/nvidia-uvm", stat.S_IFCHR | 0o600, os.makedev(510, 0))
    assert "nvidia-uvm" in {node.name for node in missing_nodes(nvidia, root=root)}
    assert "/dev/nvidia-uvm" in make_nodes(nvidia, root=root)
    assert os.major((root / "dev/nvidia-uvm").stat().st_rdev) == 511


def test_a_node_that_can_not_be_made_is_named(nvidia: Manifest, tmp_path: Path) -> None:
    def refuse(path: Path, mode: int, device: int) -> None:
        del path, mode, device
        raise PermissionError(1, "Operation not permitted")

    with pytest.raises(ProvisionError, match=r"dev/nvidiactl' could not be made: Operation not"):
        make_nodes(nvidia, root=_machine(tmp_path), mknod=refuse)


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
