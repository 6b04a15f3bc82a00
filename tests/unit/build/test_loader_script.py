"""The scripts of a driver pod, as the build container writes them into an image."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kit.cache import REPOSITORY
from provision.catalogue import Recipe
from provision.documents import load_toml
from provision.loader_script import write_pod

_SCRIPTS = REPOSITORY / "templates/loader"
_DEPENDS = {
    "nvidia_drm": ["nvidia_modeset", "drm"],
    "nvidia_modeset": ["nvidia"],
    "nvidia_peermem": ["nvidia", "ib_core"],
    "nvidia": ["i2c_core"],
}


def tool(arguments: Sequence[str]) -> str:
    """Answer as readelf and modinfo do."""
    if arguments[0] == "readelf":
        return "    Build ID: 0a0b0c0d\n"
    if arguments[2] == "srcversion":
        return "ABC\n"
    return "NVreg_CoherentGPUMemoryMode:charp\n" if "nvidia.ko" in arguments[-1] else ""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The root of an image with NVIDIA's modules, and no scripts yet."""
    recipe = load_toml(REPOSITORY / "driver_images/nvidia/driver.toml", Recipe)
    manifest: dict[str, Any] = {
        "pin": {
            "driver": {"name": "nvidia", "version": "590.48.01"},
            "kernel": {"release": "6.1.0-56-amd64"},
        },
        "modules": [
            {"name": name, "path": f"lib/{name}.ko", "depends": depends, "version": "590"}
            | {"sha256": "0" * 64}
            for name, depends in _DEPENDS.items()
        ],
        "files": [
            {"path": "/lib/firmware/nvidia/590/gsp.bin", "kind": "firmware"},
            {"path": "/usr/bin/nvidia-persistenced", "kind": "binary"},
        ],
        "host": recipe.host.model_dump(mode="json"),
    }
    (tmp_path / "opt/driver").mkdir(parents=True)
    (tmp_path / "opt/driver/manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def test_a_pod_loads_what_the_recipe_says(image: Path) -> None:
    assert write_pod(image / "opt", _SCRIPTS, tool)
    loader = (image / "usr/lib/provision/load").read_text()
    calls = [line.split()[1:3] for line in loader.splitlines() if line.startswith('    "$1" ')]
    assert calls == [["nvidia", "required"], ["nvidia_modeset", "required"]]
    # The operator loads the one beside it; no server needs the other.
    names = next(line for line in loader.splitlines() if line.startswith("names="))
    assert names == "names='nvidia nvidia_modeset nvidia_peermem'"
    assert "\nneeded=i2c_core\n" in loader
    assert "\nentry=/opt\nplace=here\n" in loader
    # elf(5): name's and id's length, type, name.
    assert "04000000" + "04000000" + "03000000" + b"GNU\0".hex() + "0a0b0c0d" in loader


def test_a_pod_knows_the_drivers_daemon_firmware_and_parameters(image: Path) -> None:
    write_pod(image / "opt", _SCRIPTS, tool)
    command = (image / "usr/bin/nvidia-driver").read_text()
    assert "\nfirmware=/lib/firmware\n" in command
    assert "    nvidia-persistenced --persistence-mode " in command
    assert "echo options 'nvidia NVreg_CoherentGPUMemoryMode=driver'" in command


def test_a_module_without_the_parameter_is_not_given_it(image: Path) -> None:
    write_pod(image / "opt", _SCRIPTS, lambda words: "" if "parmtype" in words else tool(words))
    assert "NVreg_" not in (image / "usr/bin/nvidia-driver").read_text()


def test_the_scripts_are_ones_that_sh_reads(image: Path) -> None:
    write_pod(image / "opt", _SCRIPTS, tool)
    for name in ("usr/lib/provision/load", "usr/bin/nvidia-driver"):
        path = image / name
        assert path.stat().st_mode & 0o111
        subprocess.run(["/bin/sh", "-n", path], check=True, timeout=10)


def test_a_driver_without_a_pod_gets_no_scripts(image: Path) -> None:
    path = image / "opt/driver/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["host"]["root"]["pod"] = None
    path.write_text(json.dumps(manifest))
    assert not write_pod(image / "opt", _SCRIPTS, tool)
    assert not (image / "usr").exists()
