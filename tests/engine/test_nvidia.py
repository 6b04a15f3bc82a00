"""NVIDIA's real user space in containers, and its modules on a kernel that needs our patch.

The modules take minutes to compile, at night. By day there is a small one in their place, built by
the same recipe from the same packages.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.driver_pod import NODE_FOLDERS, SEARCHED
from kit.engine import Engine
from kit.hosts import DISTRO, NEW_KERNEL, Containers, Host
from kit.nvidia_day import AMPERE, BLACKWELL, PASCAL
from kit.process import Completed
from kit.product import Provision, driver_modules, write_runtime_config

pytestmark = [pytest.mark.xdist_group("nvidia"), pytest.mark.minutes(2)]

_ML = "/usr/lib64/nvidia/libnvidia-ml.so.1"
_ALL = ("--env=OCI_NVIDIA=all",)
# https://docs.kernel.org/admin-guide/devices.html: 195 is NVIDIA's.
_NODES = {"nvidia0": 0, "nvidiactl": 255}
# nvidia-smi(1): the library of NVML was not found.
_NO_NVML = 12


@pytest.fixture(scope="module")
def nvidia_root(
    provision: Provision, small_nvidia: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The root of a host with NVIDIA's driver and the nodes of one GPU, installed once.

    Without nodes nvidia-smi would make its own, as root with MKNOD; the engine's device rules deny
    them, and it would say "Failed to initialize NVML: Unknown Error".
    """
    root = tmp_path_factory.mktemp("nvidia")
    (root / "dev").mkdir()
    for name, minor in _NODES.items():
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
    target = ("nvidia", "--version", "latest", "--kernel", NEW_KERNEL, "--distro", DISTRO)
    image = provision.build(*target, "--catalogue", small_nvidia)["image"]
    provision("verify", image)
    provision("install", image, "--root", root)
    return root


@pytest.fixture
def installed(nvidia_root: Path, shim_config: Path) -> Host:
    """The host with NVIDIA's driver, which the shim reads from now on."""
    host = Host(nvidia_root, shim_config)
    write_runtime_config(shim_config, host.config_dir, root=host.root)
    return host


@pytest.fixture(params=["docker", "in_podman"])
def run_container(
    request: pytest.FixtureRequest, containers: Containers, installed: Host
) -> Callable[..., Completed]:
    """`docker run` or `podman run` on a host with the driver."""
    del installed
    start: Callable[..., Completed] = getattr(containers, request.param)
    return start


def test_nvidia_smi_is_there_only_with_the_flag(run_container: Callable[..., Completed]) -> None:
    plain = run_container("nvidia-smi", check=False)
    assert plain.returncode == 127
    assert "not found" in plain.output
    real = run_container("nvidia-smi", flags=_ALL, check=False)
    assert "couldn't communicate with the NVIDIA driver" in real.output


def test_device_nodes_of_the_host_are_in_the_container_only_with_the_flag(
    run_container: Callable[..., Completed],
) -> None:
    listing = ("sh", "-c", "cd /dev && ls -l nvidia*")
    assert run_container(*listing, check=False).returncode != 0
    lines = run_container(*listing, flags=_ALL).stdout.splitlines()
    assert [(line[0], line.split()[-1]) for line in lines] == [("c", name) for name in _NODES]


def test_libraries_are_found_through_the_images_own_cache(
    run_container: Callable[..., Completed],
) -> None:
    # nvidia-smi would look in this folder by itself; the loader's own words are the proof.
    debug = run_container("nvidia-smi", flags=(*_ALL, "--env=LD_DEBUG=libs"), check=False)
    assert re.search(
        rf"search cache=/etc/ld\.so\.cache\s+\d+:\s+trying file={re.escape(_ML)}\b", debug.output
    )
    listing = run_container("ldconfig", "-p", flags=_ALL)
    assert re.search(rf"libnvidia-ml\.so\.1 .*=> {re.escape(_ML)}\b", listing.stdout)


def test_the_hosts_own_shell_finds_nvidia_smi_and_that_its_library(
    run_container: Callable[..., Completed], nvidia_root: Path
) -> None:
    """A container stands in for a host: it has what the installation wrote, and no driver."""
    folders = ("var/lib/provision", "etc/ld.so.conf.d", "usr/local/bin")
    mounts = [f"--volume={nvidia_root / name}:/{name}:ro" for name in folders]
    # What it says of the missing driver depends on whether the container may make device nodes.
    without = run_container("nvidia-smi", flags=mounts, check=False)
    assert without.returncode == _NO_NVML
    done = run_container("sh", "-c", "ldconfig && nvidia-smi", flags=mounts, check=False)
    assert done.returncode not in {0, _NO_NVML, 126, 127}


@pytest.mark.parametrize(("pattern", "folders"), SEARCHED)
def test_an_operator_finds_the_driver_in_its_root(
    installed: Host, folders: list[str], pattern: str
) -> None:
    root = (installed.entry("nvidia") / "driver").resolve()
    found = [path for folder in folders for path in (root / folder).glob(pattern)]
    assert found
    # They resolve links on the node, where a link out of the root would lead elsewhere.
    assert all(path.resolve().is_relative_to(root) and path.is_file() for path in found)
    unit = installed.root / "etc/systemd/system/run-nvidia-driver.mount"
    assert "Where=/run/nvidia/driver" in unit.read_text()
    # It would take that one.
    assert not [f for f in NODE_FOLDERS if (installed.root / f / "nvidia-smi").exists()]


def test_the_artifact_says_which_cards_the_driver_drives(installed: Host) -> None:
    """By the list in Debian's package of the real driver."""
    manifest = json.loads((installed.entry("nvidia") / "driver/manifest.json").read_text())
    (cards,) = manifest["cards"]
    assert cards["vendor"] == "10de"
    assert AMPERE in cards["devices"]
    # For the one these are the wrong modules, for the other the version is too old.
    assert not {PASCAL, BLACKWELL} & set(cards["devices"])


@pytest.mark.nightly
def test_the_modules_are_for_that_kernel(
    provision: Provision, nvidia_build: dict[str, Any], tmp_path: Path
) -> None:
    provision("install", nvidia_build["image"], "--root", tmp_path)
    entry = (tmp_path / "var/lib/provision/nvidia/current").resolve(strict=True)
    assert len(driver_modules(entry)) == 5
    assert NEW_KERNEL in provision("verify", entry).output


@pytest.mark.minutes(3)
@pytest.mark.parametrize(
    "distro",
    [
        "debian:12",
        # `make demo` in a bare Debian 13 builds the real one each day.
        pytest.param(
            "debian:13", marks=[pytest.mark.nightly, pytest.mark.xdist_group("nvidia on debian:13")]
        ),
    ],
)
def test_the_drivers_programs_start_in_its_image(
    provision: Provision, engine: Engine, small_nvidia: Path, tmp_path: Path, distro: str
) -> None:
    """A GPU operator's pod has nothing but the image: what they are linked with is in it."""
    kernel = NEW_KERNEL
    if distro != DISTRO:
        kernels = provision.json("drivers", "kernels", "nvidia", "--distro", distro)["kernels"]
        kernel = next(row["release"] for row in kernels if row["known"] == "works")
    target = ("nvidia", "--version", "latest", "--kernel", kernel, "--distro", distro)
    built = provision.build(*target, "--catalogue", small_nvidia)
    assert built["left_out"] == {}
    for program in ("nvidia-persistenced", "nvidia-modprobe"):
        done = engine.docker("run", "--rm", built["image"], program, "--version")
        assert f"{program}: " in done.output
    # User space is for containers, which have such libraries of their own.
    content = engine.copy_out(built["image"], "/opt/driver/.", tmp_path)
    assert not [*content.rglob("libtirpc*")]
