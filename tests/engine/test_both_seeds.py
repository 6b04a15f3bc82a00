"""NVIDIA's and Solarflare's vendor files together, as they are shipped, in every runtime."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.bundles import Bundle
from kit.cache import REPOSITORY
from kit.hosts import Containers, Host
from kit.probe import can_run_crun, need, need_programs
from kit.product import RUNTIME, write_runtime_config
from kit.standins import ALLOWED, OPEN_NODES, stand_in

# Words to run and variables of the container → what the words print.
Start = Callable[[str, tuple[str, ...]], str]

_GPU = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_NIC = ("onload", "onload_epoll", "sfc_char")
_GPU_FILES = ("/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-smi")
_NIC_FILES = (
    "/usr/bin/onload",
    "/usr/sbin/onload_tool",
    "/usr/libexec/onload/profiles/latency.opf",
)
_GPU_LIBRARIES = ("/usr/lib64/nvidia/libcuda.so", "/usr/lib64/nvidia/libnvidia-ml.so.396.26")
_NIC_LIBRARIES = ("/usr/lib64/libonload.so", "/usr/lib64/libonload_ext.so.1.1.0")
_FILES = (*_GPU_FILES, *_NIC_FILES, *_GPU_LIBRARIES, *_NIC_LIBRARIES)
# What opening each node says, then each file that isn't empty, then the folders of the cache.
_REPORT = f"""
set --
for name in {" ".join((*_GPU, *_NIC))}; do [ ! -e /dev/$name ] || set -- "$@" /dev/$name; done
{OPEN_NODES}
for file in {" ".join(_FILES)}; do [ ! -s $file ] || echo $file; done
ldconfig -p | grep -o '/usr/lib64/.*' | xargs -r dirname | sort -u
"""


@pytest.fixture(scope="module")
def seeded_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a host with both vendor files and a stand-in for everything that they list."""
    root = tmp_path_factory.mktemp("seeds")
    host = Host(root, root / "unused")
    for name in ("oci-nvidia", "oci-onload"):
        path = REPOSITORY / f"hooks/vendors/{name}.json"
        document = json.loads(path.read_text())
        host.write_vendor(path.stem, document)
        stand_in(host, document)
    return root


@pytest.fixture
def seeded(seeded_root: Path, shim_config: Path) -> Host:
    """That host, which the shim reads from now on."""
    host = Host(seeded_root, shim_config)
    write_runtime_config(shim_config, host.config_dir, root=host.root)
    return host


@pytest.fixture(params=["docker", "podman", "runc", "crun"])
def start(
    request: pytest.FixtureRequest,
    containers: Containers,
    seeded: Host,
    tmp_path: Path,
) -> Start:
    """One way of starting a container of the base image."""
    runtime: str = request.param

    def in_engine(script: str, variables: tuple[str, ...]) -> str:
        flags = tuple(word for name in variables for word in ("-e", name))
        way = containers.docker if runtime == "docker" else containers.in_podman
        return way("sh", "-c", script, flags=flags).stdout

    def in_bundle(script: str, variables: tuple[str, ...]) -> str:
        # What an engine's client does with only a name.
        taken = [name if "=" in name else f"{name}={os.environ[name]}" for name in variables]
        write_runtime_config(seeded.config, seeded.config_dir, root=seeded.root, runtime=runtime)
        bundle = Bundle(tmp_path / "bundle")
        root = request.getfixturevalue("fresh_root")
        bundle.write("sh", "-c", script, env=tuple(taken), root=root)
        config = {"OCI_DECORATOR_CONFIG": str(seeded.config)}
        return bundle.start(RUNTIME, env=config, low_level=runtime).stdout

    if runtime in {"docker", "podman"}:
        return in_engine
    need_programs(runtime)
    need(runtime != "crun" or can_run_crun(), "cgroups that crun accepts", "use a newer machine")
    return in_bundle


def _opened(names: tuple[str, ...]) -> list[str]:
    return [f"/dev/{name}: {ALLOWED}" for name in names]


def test_both_at_once_by_the_commands_of_the_announcement(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `-e NAME` without a value: the client hands on its own.
    monkeypatch.setenv("OCI_SOLARFLARE", "")
    monkeypatch.setenv("OCI_NVIDIA", "")
    report = start(_REPORT, ("OCI_SOLARFLARE", "OCI_NVIDIA")).splitlines()
    assert report == [*_opened((*_GPU, *_NIC)), *_FILES, "/usr/lib64", "/usr/lib64/nvidia"]


def test_only_matching_vendors_and_features_apply(start: Start) -> None:
    assert start(_REPORT, ()) == ""
    nic = [*_opened(_NIC), *_NIC_FILES, *_NIC_LIBRARIES, "/usr/lib64"]
    assert start(_REPORT, ("OCI_SOLARFLARE=all", "OCI_NVIDIA=none")).splitlines() == nic
    utility = [*_opened(_GPU[:2]), _GPU_FILES[1], _GPU_LIBRARIES[1], "/usr/lib64/nvidia"]
    assert start(_REPORT, ("OCI_NVIDIA=utility",)).splitlines() == utility
