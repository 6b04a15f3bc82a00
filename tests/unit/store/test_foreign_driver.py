"""The vendor file of a driver that a host has from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.artifact import write
from provision.catalogue import Catalogue, Recipe
from provision.config import catalogue_folders
from provision.errors import NotFoundError
from provision.store.foreign import foreign_vendor_file
from unit.cli.outcome import Outcome

_ELF = {32: b"\x7fELF\x01rest", 64: b"\x7fELF\x02rest"}
_VERSION = "550.163.01"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    """NVIDIA's."""
    return Catalogue(catalogue_folders()).entry("nvidia").recipe


def _library(root: Path, folder: str, stem: str, *links: str, bits: int = 64) -> None:
    name = f"{stem}.so.{_VERSION}"
    write(root / folder / name, _ELF[bits])
    for link in links:
        (root / folder / link).symlink_to(name)


def _file(recipe: Recipe, root: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(foreign_vendor_file(recipe, root=root, machine="x86_64"))
    return document


def test_debian_has_its_libraries_behind_alternatives(recipe: Recipe, tmp_path: Path) -> None:
    usual = "usr/lib/x86_64-linux-gnu"
    current = f"{usual}/nvidia/current"
    _library(tmp_path, usual, "libnvidia-ml", "libnvidia-ml.so.1")
    _library(tmp_path, current, "libcuda", "libcuda.so.1", "libcuda.so")
    write(tmp_path / "etc/alternatives/.keep", b"")
    (tmp_path / "etc/alternatives/libcuda.so.1").symlink_to(f"/{current}/libcuda.so.1")
    (tmp_path / usual / "libcuda.so.1").symlink_to("/etc/alternatives/libcuda.so.1")
    # Of another driver, and so left out.
    write(tmp_path / usual / "libcuda.so.9", _ELF[64])
    write(tmp_path / "usr/bin/nvidia-smi", b"program", 0o755)
    document = _file(recipe, tmp_path)
    compute, utility = (document["inventory"][name] for name in ("compute", "utility"))
    assert compute["libraries"] == [
        f"/{usual}/libcuda.so.1",
        f"/{current}/libcuda.so",
        f"/{current}/libcuda.so.1",
        f"/{current}/libcuda.so.{_VERSION}",
    ]
    assert utility["libraries"] == [
        f"/{usual}/libnvidia-ml.so.1",
        f"/{usual}/libnvidia-ml.so.{_VERSION}",
    ]
    assert utility["binaries"] == ["/usr/bin/nvidia-smi"]
    head = {key: value for key, value in document.items() if key != "inventory"}
    assert head == {
        "version": _VERSION,
        "log_level": "LOG_INFO",
        "activation_flag": "OCI_NVIDIA",
        "driver_feature": ["compute", "utility"],
        "interfaces": ["nvidia"],
        "units": "nvidia[0-9]*",
    }


def test_a_cloud_mounts_its_driver_below_a_folder_of_its_own(
    recipe: Recipe, tmp_path: Path
) -> None:
    folder = "usr/local/nvidia/lib64"
    _library(tmp_path, folder, "libnvidia-ml", "libnvidia-ml.so.1")
    write(tmp_path / "usr/local/nvidia/bin/nvidia-smi", b"program", 0o755)
    utility = _file(recipe, tmp_path)["inventory"]["utility"]
    assert utility["libraries"] == [
        f"/{folder}/libnvidia-ml.so.1",
        f"/{folder}/libnvidia-ml.so.{_VERSION}",
    ]
    assert utility["binaries"] == ["/usr/local/nvidia/bin/nvidia-smi"]


def test_features_are_called_as_nvidias_capabilities(recipe: Recipe, tmp_path: Path) -> None:
    _library(tmp_path, "usr/lib64", "libnvidia-ml")
    inventory = _file(recipe, tmp_path)["inventory"]
    names = {"compute", "utility", "video", "graphics", "display", "ngx", "compat32"}
    assert inventory.keys() == names
    assert "nvidia-caps/*" in inventory["compute"]["devices"]
    assert "dri/card*" in inventory["display"]["devices"]


def test_libraries_of_32_bits_are_a_feature_of_their_own(recipe: Recipe, tmp_path: Path) -> None:
    """As RPM distros have them: /usr/lib64 and /usr/lib."""
    _library(tmp_path, "usr/lib64", "libnvidia-ml")
    _library(tmp_path, "usr/lib64", "libcuda", "libcuda.so.1")
    _library(tmp_path, "usr/lib", "libcuda", "libcuda.so.1", bits=32)
    inventory = _file(recipe, tmp_path)["inventory"]
    assert inventory["compute"]["libraries"] == [
        "/usr/lib64/libcuda.so.1",
        f"/usr/lib64/libcuda.so.{_VERSION}",
    ]
    assert inventory["compat32"]["libraries"] == [
        "/usr/lib/libcuda.so.1",
        f"/usr/lib/libcuda.so.{_VERSION}",
    ]


def test_files_of_graphics_that_are_no_libraries(recipe: Recipe, tmp_path: Path) -> None:
    _library(tmp_path, "usr/lib64", "libnvidia-ml")
    write(tmp_path / "usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", b"{}")
    write(tmp_path / "usr/share/glvnd/egl_vendor.d/10_nvidia.json", b"{}")
    (tmp_path / "etc/vulkan/icd.d").mkdir(parents=True)
    (tmp_path / "etc/vulkan/icd.d/nvidia_icd.json").symlink_to("/gone")
    assert _file(recipe, tmp_path)["inventory"]["graphics"]["miscellaneous"] == [
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
    ]


def test_of_two_versions_the_loaded_one_counts(recipe: Recipe, tmp_path: Path) -> None:
    for version in ("535.9.1", "535.10.1"):
        write(tmp_path / f"usr/lib64/libnvidia-ml.so.{version}", _ELF[64])
    assert _file(recipe, tmp_path)["version"] == "535.10.1"
    write(tmp_path / "sys/module/nvidia/version", b"535.9.1\n")
    assert _file(recipe, tmp_path)["version"] == "535.9.1"
    write(tmp_path / "sys/module/nvidia/version", b"999.1\n")
    assert _file(recipe, tmp_path)["version"] == "535.10.1"


def test_a_driver_that_is_not_there(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").symlink_to("/gone")
    with pytest.raises(NotFoundError):
        _file(recipe, tmp_path)
    unknown = recipe.model_copy(update={"installed": None})
    with pytest.raises(NotFoundError):
        _file(unknown, tmp_path)


def test_the_command_writes_it(call: Callable[..., Outcome], tmp_path: Path) -> None:
    host = tmp_path / "host"
    write(host / "etc/os-release", b'ID=fedora\nVERSION_ID="43"\n')
    _library(host, "usr/lib64", "libnvidia-ml", "libnvidia-ml.so.1")
    printed = call("drivers", "vendor-file", "nvidia", "--root", host)
    assert printed.code == 0
    target = tmp_path / "nvidia.json"
    written = call("drivers", "vendor-file", "nvidia", "--root", host, "--output", target)
    assert (written.out, target.read_text()) == (f"{target}: written.\n", printed.out)
    again = call("drivers", "vendor-file", "nvidia", "--root", host, "--output", target, "--json")
    assert again.document["changed"] is False
    assert again.document["vendor_file"] == json.loads(printed.out)
    assert call("drivers", "vendor-file", "v4l2loopback", "--root", host).code == 3
    empty = tmp_path / "empty"
    empty.mkdir()
    assert call("drivers", "vendor-file", "nvidia", "--root", empty).code == 3


def test_the_places_of_daemons_that_run_are_offered(recipe: Recipe, tmp_path: Path) -> None:
    """Programs of a container reach MPS, persistenced and the fabric manager by these."""
    _library(tmp_path, "usr/lib64", "libnvidia-ml", "libnvidia-ml.so.1")
    quiet = _file(recipe, tmp_path)["inventory"]
    sockets = [f"run/nvidia-{name}/socket" for name in ("fabricmanager", "persistenced")]
    for name in (*sockets, "tmp/nvidia-mps/control"):
        write(tmp_path / name, b"")
    found = _file(recipe, tmp_path)["inventory"]
    assert quiet["utility"]["miscellaneous"] == quiet["compute"]["miscellaneous"] == []
    assert found["utility"]["miscellaneous"] == [f"/{name}" for name in sockets]
    assert found["compute"]["miscellaneous"] == ["/tmp/nvidia-mps"]  # noqa: S108 - a fixed path
