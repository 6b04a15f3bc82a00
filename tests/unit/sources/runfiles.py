"""A small file of NVIDIA's .run format, by `kit.runfile`, and its parts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kit.runfile import manifest
from provision.errors import ProvisionError
from provision.pin import RunfileSource
from provision.sources.runfile import FILES, repack
from unit.sources.libraries import library

VERSION = "580.95.05"


CUDA, ML = f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}"


ROWS = (
    "kernel-open/Makefile 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:resman",
    "kernel-open/nvidia/nv-kernel.o_binary 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:rm",
    f"{CUDA} 0755 CUDA_LIB NATIVE MODULE:gpgpu",
    f"libcuda.so.1 0000 CUDA_SYMLINK NATIVE {CUDA} MODULE:gpgpu",
    "libcuda.so 0000 CUDA_SYMLINK NATIVE libcuda.so.1 MODULE:gpgpu",
    f"32/{CUDA} 0755 CUDA_LIB COMPAT32 MODULE:gpgpu",
    f"libcuda.so.1 0000 CUDA_SYMLINK COMPAT32 {CUDA} MODULE:gpgpu",
    f"{ML} 0755 UTILITY_LIB NATIVE MODULE:nvml",
    "nvidia-smi 0755 UTILITY_BINARY MODULE:nvml",
    "nvidia-modprobe 4755 NVIDIA_MODPROBE MODULE:installer",
    "nvidia-settings 0755 UTILITY_BINARY MODULE:nvml",
    "nvidia.icd 0644 CUDA_ICD MODULE:gpgpu",
    "nvidia_icd.json 0644 VULKAN_ICD_JSON icd.d/ MODULE:opengl",
    "nvidia_layers.json 0644 VULKAN_ICD_JSON implicit_layer.d/ MODULE:opengl",
    "nvidia_old.json 0644 VULKAN_ICD_JSON MODULE:opengl",
    "firmware/gsp_ga10x.bin 0644 FIRMWARE INHERIT_PATH_DEPTH:1 MODULE:gsp",
    "libOpenCL.so.1.0.0 0755 OPENCL_WRAPPER_LIB NATIVE MODULE:opencl",
    "html/index.html 0644 DOCUMENTATION INHERIT_PATH_DEPTH:1 MODULE:installer",
    "supported-gpus/supported-gpus.json 0644 DOCUMENTATION INHERIT_PATH_DEPTH:1 MODULE:installer",
)


def contents(*rows: str, text: str | None = None) -> dict[str, bytes | Path]:
    files: dict[str, bytes | Path] = {
        ".manifest": (text or manifest(VERSION, [*ROWS, *rows])).encode(),
        "LICENSE": b"licence",
        "kernel-open/Makefile": b"all:\n",
        "kernel-open/nvidia/nv-kernel.o_binary": b"core",
        CUDA: library("libcuda.so.1"),
        f"32/{CUDA}": library("libcuda.so.1", bits=32),
        # Its list has no link for it.
        ML: library("libnvidia-ml.so.1"),
    }
    for name, mode, *_ in map(str.split, ROWS):
        if mode != "0000":
            files.setdefault(name, name.encode())
    return files


def pinned(**changes: object) -> RunfileSource:
    data = {
        "url": f"https://driver.example/NVIDIA-Linux-x86_64-{VERSION}.run",
        "sha256": "0" * 64,
        "version": VERSION,
        "architecture": "x86_64",
        **changes,
    }
    return RunfileSource.model_validate(data)


def taken_apart(run: Path, tmp_path: Path, **changes: object) -> dict[str, Path]:
    folder = tmp_path / "parts"
    folder.mkdir(exist_ok=True)
    return repack(run, pinned(**changes), folder)


def rows_of(parts: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    document = json.loads(parts[FILES].read_text())
    return {row["path"]: row for row in document["files"]}


def refused(run: Path, tmp_path: Path, **changes: object) -> ProvisionError:
    with pytest.raises(ProvisionError) as caught:
        taken_apart(run, tmp_path, **changes)
    assert not (tmp_path / "parts/payload.tar").exists()
    assert caught.value.resolution
    return caught.value
