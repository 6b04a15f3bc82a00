"""Hosts with GPUs: the driver's files in /proc, a stand-in for NVML, and the real nvidia-smi."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kit.files import write
from kit.foreign import program_root
from kit.go_modules import go_module
from kit.probe import need_programs
from kit.process import run

_GO_NVML = ("v0.12.4-1", "h1:WKUvqshhWSNTfm47ETRhv0A0zJyr1ncCuHiXwoTrBEc=")

_SOURCE = Path(__file__).with_name("nvml") / "nvml.c"
_CUDA = _SOURCE.with_name("cuda.c")
_BOOT = "proc/sys/kernel/random/boot_id"
VERSION = "535.261.03"
# What is written down of the stand-in's GPUs, on a host that `add_gpus` made.
FACTS: dict[str, Any] = {
    "schema": 1,
    "source": "nvml",
    "driver_version": VERSION,
    "cuda_version": "12.2",
    "devices": [
        {
            "index": 0,
            "minor": 1,
            "pci": "0000:0a:00.0",
            "uuid": "GPU-11111111-2222-3333-4444-555555555555",
            "name": "Tesla T4",
            "brand": "tesla",
            "arch": "7.5",
        },
        {
            "index": 1,
            "minor": 0,
            "pci": "10000:c1:00.0",
            "uuid": "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa",
            "name": "NVIDIA A100-SXM4-40GB",
            "brand": "nvidia",
            "arch": "8.0",
            "mig": [
                {
                    "index": 0,
                    "uuid": "MIG-bbbbbbbb-0000-5000-8000-000000000001",
                    "gpu_instance": 1,
                    "compute_instance": 0,
                    "nodes": ["nvidia-caps/nvidia-cap12", "nvidia-caps/nvidia-cap13"],
                },
                {
                    "index": 1,
                    "uuid": "MIG-bbbbbbbb-0000-5000-8000-000000000002",
                    "gpu_instance": 2,
                    "compute_instance": 0,
                    "nodes": ["nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22"],
                },
            ],
        },
    ],
}
_REPORT = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<driver_version>{driver_version}</driver_version>
\t<cuda_version>{cuda_version}</cuda_version>
{gpus}</nvidia_smi_log>
"""
_GPU = """\
\t<gpu id="{pci}">
\t\t<product_name>{name}</product_name>
\t\t<product_brand>{brand}</product_brand>
\t\t<mig_mode>
\t\t\t<current_mig>{mode}</current_mig>
\t\t</mig_mode>
\t\t<mig_devices>
\t\t\t{parts}
\t\t</mig_devices>
\t\t<serial>N/A</serial>
\t\t<uuid>{uuid}</uuid>
\t\t<minor_number>{minor}</minor_number>
\t</gpu>
"""
_PART = """\
<mig_device>
\t\t\t\t<index>{index}</index>
\t\t\t\t<gpu_instance_id>{gpu_instance}</gpu_instance_id>
\t\t\t\t<compute_instance_id>{compute_instance}</compute_instance_id>
\t\t\t</mig_device>"""
_CAPABILITIES = {"gi1": 12, "gi1/ci0": 13, "gi2": 21, "gi2/ci0": 22}
_BRANDS = {"tesla": "NVML_BRAND_TESLA", "nvidia": "NVML_BRAND_NVIDIA"}


def plain_gpus(count: int) -> dict[str, Any]:
    """Facts about GPUs that are all of one kind and not divided."""
    first = FACTS["devices"][0]

    def gpu(index: int) -> dict[str, Any]:
        own = {"index": index, "minor": index, "pci": f"0000:0{index + 1}:00.0"}
        return {**first, **own, "uuid": f"GPU-{index:08}-2222-3333-4444-555555555555"}

    return {**FACTS, "devices": [gpu(index) for index in range(count)]}


def nodes_of(facts: dict[str, Any]) -> list[str]:
    """The nodes of GPUs and their parts."""
    return [
        node
        for gpu in facts["devices"]
        for node in (
            f"nvidia{gpu['minor']}",
            *(n for part in gpu.get("mig", ()) for n in part["nodes"]),
        )
    ]


def add_gpus(root: Path, *, is_running: bool = True, facts: dict[str, Any] = FACTS) -> None:
    """Write what the driver says of the stand-in's GPUs in /proc.

    With `is_running`, the root is taken for the running host's, whose NVML can be asked.
    """
    folder = root / "proc/driver/nvidia"
    write(
        folder / "version",
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Mon Jul 14 12:00:00 UTC 2025\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) \n",
    )
    for gpu in facts["devices"]:
        write(
            folder / "gpus" / gpu["pci"] / "information",
            f"Model: \t\t {gpu['name']}\nIRQ:   \t\t 100\nGPU UUID: \t {gpu['uuid']}\n"
            f"Video BIOS: \t 90.04.a7.00.01\nBus Type: \t PCIe\nDMA Size: \t 47 bits\n"
            f"Bus Location: \t {gpu['pci']}\nDevice Minor: \t {gpu['minor']}\n"
            "GPU Excluded:\t No\n",
        )
    minors = ["config 1", "monitor 2"]
    for gpu in facts["devices"]:
        for name, minor in _CAPABILITIES.items() if gpu.get("mig") else ():
            write(
                folder / f"capabilities/gpu{gpu['minor']}/mig" / name / "access",
                f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
            )
            minors.append(f"gpu{gpu['minor']}/{name}/access {minor}")
    write(folder.with_name("nvidia-caps") / "mig-minors", "\n".join(minors) + "\n")
    write(root / _BOOT, Path("/", _BOOT).read_text() if is_running else "another-boot\n")


def make_nvml(
    folder: Path, *defined: str, facts: dict[str, Any] = FACTS, version: str = VERSION
) -> Path:
    """Compile the stand-in `nvml/nvml.c` into a folder; return the link by which it is loaded.

    `defined` is how it behaves, as in its source: `NODES`, `HANGS`, `LOST=1`, …
    """
    need_programs("gcc")
    header = go_module("github.com/NVIDIA/go-nvml", *_GO_NVML) / "gen/nvml"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"libnvidia-ml.so.{version}"
    words = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wmissing-prototypes"]
    words += ["-Wl,-soname,libnvidia-ml.so.1", *(f"-D{name}" for name in defined)]
    with TemporaryDirectory() as generated:
        (Path(generated) / "gpus.h").write_text(_table(facts))
        # NVIDIA's header is a system header here: its own warnings are not ours.
        run(["gcc", *words, "-isystem", header, "-I", generated, "-o", library, _SOURCE])
    return _linked(library, "libnvidia-ml.so.1")


def make_cuda(folder: Path, *defined: str, version: str = VERSION) -> Path:
    """Compile the stand-in `nvml/cuda.c` into a folder; return the link by which it is loaded."""
    need_programs("gcc")
    library = folder / f"libcuda.so.{version}"
    words = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1"]
    run(["gcc", *words, *(f"-D{name}" for name in defined), "-o", library, _CUDA])
    # What linkers search for.
    _linked(library, "libcuda.so")
    return _linked(library, "libcuda.so.1")


def _linked(library: Path, name: str) -> Path:
    link = library.with_name(name)
    link.unlink(missing_ok=True)
    link.symlink_to(library.name)
    return link


def _table(facts: dict[str, Any]) -> str:
    """The GPUs as C has them."""

    def row(gpu: dict[str, Any]) -> str:
        parts = [
            f'{{"{part["uuid"]}", {part["gpu_instance"]}, {part["compute_instance"]},'
            f" {{{', '.join(json.dumps(node) for node in part['nodes'])}}}}}"
            for part in gpu.get("mig", ())
        ]
        pci = gpu["pci"].upper().zfill(len("00000000:00:00.0"))
        texts = [
            json.dumps(text) for text in (gpu["uuid"], pci, gpu["name"], f"nvidia{gpu['minor']}")
        ]
        numbers = [gpu["minor"], _BRANDS[gpu["brand"]], *gpu["arch"].split("."), len(parts)]
        return f"{{{', '.join(map(str, [*texts, *numbers]))}, {{{', '.join(parts)}}}}}"

    rows = ",\n".join(map(row, facts["devices"]))
    before, after = report({**facts, "devices": []}).split("</cuda_version>")
    texts = [before + "</cuda_version>", after, *map(_gpu_report, facts["devices"])]
    reports = ",\n".join(map(json.dumps, texts))
    return f"""\
#define DRIVER "{facts["driver_version"]}"
static const struct gpu gpus[] = {{
{rows}
}};
static const char *const report_parts[] = {{
{reports}
}};
"""


def report(facts: dict[str, Any]) -> str:
    """What `nvidia-smi -q -x` prints, as it was recorded, of what we read."""
    return _REPORT.format(**facts, gpus="".join(map(_gpu_report, facts["devices"])))


def _gpu_report(gpu: dict[str, Any]) -> str:
    parts = [_PART.format(**part) for part in gpu.get("mig", ())]
    mode = "Enabled" if parts else "N/A"
    pci = gpu["pci"].upper().zfill(len("00000000:00:00.0"))
    brand = {"tesla": "Tesla", "nvidia": "NVIDIA"}[gpu["brand"]]
    more = {"pci": pci, "brand": brand, "mode": mode, "parts": "".join(parts) or "None"}
    return _GPU.format(**{**gpu, **more})


def nvidia_smi() -> Path:
    """The real program, of Debian's package."""
    components = "main contrib non-free"
    root = program_root("bookworm", "nvidia-smi", alone=True, components=components)
    return root / "usr/lib/nvidia/current/nvidia-smi"
