"""A machine with NVIDIA's GPUs that aren't there, and our program under NVIDIA's names.

The machine is a layer on top of a Debian (`kit.docker_in_tree`), and a folder that our settings
name as the host's root: in it are the nodes, the driver's files and the facts about its devices.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit.hosts import Host
from kit.process import run
from kit.product import DECORATOR, write_runtime_config
from kit.standins import ALLOWED, OPEN_NODES, stand_in

if TYPE_CHECKING:
    from pathlib import Path

    from kit.podman import Podman

__all__ = ["LIBRARIES", "LIBRARY_FOLDER", "NvidiaHost", "nodes", "nvidia_host"]

LIBRARY_FOLDER = "/usr/lib/x86_64-linux-gnu"
# What a container with all of it lists.
LIBRARIES = ["libcuda.so.1", "libnvidia-ml.so.1"]
# What it finds of the driver: its nodes, which of them may be used, and the loader's view.
_SMI = f"""#!/bin/sh
set -- /dev/nvidia*
{OPEN_NODES}
ldconfig -p | sed -n 's/.* => .*\\(libcuda\\|libnvidia-ml\\)/\\1/p' | sort
"""


@dataclass(frozen=True, slots=True)
class NvidiaHost:
    """The machine.

    Attributes:
        folder: what engines have to see of it.
        layer: what lies on top of a Debian.
        host: the folder that is the host's root for our program.
        uuids: the GPUs', by index.
    """

    folder: Path
    layer: Path
    host: Host
    uuids: tuple[str, ...]

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
        program = self.layer / "usr/local/bin/podman"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\ncd /\nexec env {variables} /usr/bin/podman {words} "$@"\n')
        program.chmod(0o755)


def nvidia_host(folder: Path, *, gpus: int = 2) -> NvidiaHost:
    """Lay out a machine without links; each GPU's number, index and minor are the same."""
    layer = folder / "layer"
    programs = layer / "usr/bin"
    programs.mkdir(parents=True)
    shutil.copy2(DECORATOR, programs / "oci-decorator")
    host = Host(folder / "host", folder / "config.toml")
    smi = host.root / "usr/bin/nvidia-smi"
    smi.parent.mkdir(parents=True)
    smi.write_text(_SMI)
    smi.chmod(0o755)
    vendor = _vendor(gpus)
    stand_in(host, vendor)
    host.write_vendor("nvidia", vendor)
    uuids = tuple(f"GPU-{index:08}-2222-3333-4444-555555555555" for index in range(gpus))
    facts = host.root / "run/oci-decorator/devices/nvidia.json"
    facts.parent.mkdir(parents=True)
    facts.write_text(json.dumps(_facts(uuids)))
    (host.root / "etc/cdi").mkdir(parents=True)
    write_runtime_config(host.config, host.config_dir, root=host.root)
    settings = layer / "etc/oci-decorator/config.toml"
    settings.parent.mkdir(parents=True)
    shutil.copy2(host.config, settings)
    return NvidiaHost(folder, layer, host, uuids)


def nodes(*names: str) -> list[str]:
    """What `nvidia-smi` says of nodes that a container has and may use."""
    return [f"/dev/{name}: {ALLOWED}" for name in sorted(names)]


def _vendor(gpus: int) -> dict[str, Any]:
    units = [f"nvidia{index}" for index in range(gpus)]
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


def _facts(uuids: tuple[str, ...]) -> dict[str, Any]:
    def device(index: int, uuid: str) -> dict[str, Any]:
        pci = f"0000:0{index + 1}:00.0"
        known = {"brand": "nvidia", "arch": "8.0", "mig": []}
        return {"index": index, "minor": index, "uuid": uuid, "pci": pci, **known}

    return {
        "driver_version": "535.261.03",
        "cuda_version": "12.2",
        "devices": [device(index, uuid) for index, uuid in enumerate(uuids)],
    }
