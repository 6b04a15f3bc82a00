"""A machine with NVIDIA's GPUs that aren't there, and our program under NVIDIA's names.

The machine is a layer on top of a Debian (`kit.docker_in_tree`), and a folder that our settings
name as the host's root: in it are the nodes, the driver's files and the facts about its devices.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.files import write
from kit.gpus import FACTS, make_nvml, nodes_of, nvidia_smi
from kit.hosts import Host
from kit.podman import Podman
from kit.process import run
from kit.product import DECORATOR, write_runtime_config
from kit.standins import stand_in

LIBRARY_FOLDER = "/usr/lib/x86_64-linux-gnu"
# What a container with all of it lists.
LIBRARIES = ["libcuda.so.1", "libnvidia-ml.so.1"]
# What a container finds of the driver, in the end.
REPORT = """
nvidia-smi -L
ldconfig -p | sed -n 's/.* => .*\\(libcuda\\|libnvidia-ml\\)/\\1/p' | sort
"""


def uuids(said: str) -> list[str]:
    """The GPUs and parts in the output of `nvidia-smi -L`."""
    return re.findall(r"\(UUID: (\S+)\)", said)


@dataclass(frozen=True, slots=True)
class NvidiaHost:
    # What engines have to see of it.
    folder: Path
    # What lies on top of a Debian.
    layer: Path
    # The folder that is the host's root for our program.
    host: Host

    @property
    def cdi_file(self) -> Path:
        """A specification of CDI, where our own program looks for it."""
        return self.host.root / "etc/cdi/nvidia.yaml"

    def link(self) -> None:
        """Make the links with NVIDIA's names."""
        programs = self.layer / "usr/bin"
        run([programs / "oci-decorator", "install-links", programs])

    def add_podman(self, podman: Podman) -> None:
        """Have this podman, with its own images, as the machine's `podman`."""
        variables = " ".join(f"{name}={value}" for name, value in podman.variables().items())
        words = " ".join(str(word) for word in podman.command()[1:])
        text = f'#!/bin/sh\ncd /\nexec env {variables} /usr/bin/podman {words} "$@"\n'
        write(self.layer / "usr/local/bin/podman", text, 0o755)


def nvidia_host(folder: Path, facts: dict[str, Any] = FACTS) -> NvidiaHost:
    """Lay out a machine without links."""
    layer = folder / "layer"
    programs = layer / "usr/bin"
    programs.mkdir(parents=True)
    shutil.copy2(DECORATOR, programs / "oci-decorator")
    host = Host(folder / "host", folder / "config.toml")
    add_driver(host, facts)
    (host.root / "etc/cdi").mkdir(parents=True)
    write_runtime_config(host.config, host.config_dir, root=host.root)
    settings = layer / "etc/oci-decorator/config.toml"
    settings.parent.mkdir(parents=True)
    shutil.copy2(host.config, settings)
    return NvidiaHost(folder, layer, host)


def add_driver(host: Host, facts: dict[str, Any] = FACTS) -> None:
    """Put NVIDIA's driver onto a host: its files, nodes, vendor file, and facts about its GPUs."""
    write(host.root / "usr/bin/nvidia-smi", nvidia_smi().read_bytes(), 0o755)
    make_nvml(host.root / LIBRARY_FOLDER[1:], "NODES", facts=facts)
    vendor = _vendor(facts)
    parts = {"devices": nodes_of(facts)}
    stand_in(host, {"inventory": {**vendor["inventory"], "parts": parts}})
    host.write_vendor("nvidia", vendor)
    write(host.root / "run/oci-decorator/devices/nvidia.json", json.dumps(facts))


def _vendor(facts: dict[str, Any]) -> dict[str, Any]:
    units = [f"nvidia{gpu['minor']}" for gpu in facts["devices"]]
    return {
        "activation_flag": "OCI_NVIDIA",
        "driver_feature": ["compute", "utility"],
        "interfaces": ["nvidia"],
        "units": "nvidia[0-9]*",
        "cdi_kind": "nvidia.com/gpu",
        "inventory": {
            "compute": {
                "devices": [*units, "nvidiactl", "nvidia-uvm"],
                "libraries": [f"{LIBRARY_FOLDER}/libcuda.so.1"],
            },
            "utility": {
                "devices": [*units, "nvidiactl"],
                "binaries": ["/usr/bin/nvidia-smi"],
                "libraries": [f"{LIBRARY_FOLDER}/libnvidia-ml.so.1"],
            },
        },
    }
