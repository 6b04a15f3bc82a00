"""Files in the layout of NVIDIA's own, by hand: head, tar file and list are as in theirs."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

_HEAD = """\
#! /bin/sh
# This script was generated using Makeself
CRCsum=0000000000
MD5=00000000000000000000000000000000
skip={skip}
label="NVIDIA Accelerated Graphics Driver for Linux-x86_64 {version}"
script=./nvidia-installer
targetdir=NVIDIA-Linux-x86_64-{version}
pkg_version={version}
echo "This file was run, which nothing may do." >&2
exit 99
"""
# With a parameter that NVIDIA's has since 580. The others need the first, as NVIDIA's do.
_FIRST = """#include <linux/module.h>
static char *NVreg_CoherentGPUMemoryMode;
module_param(NVreg_CoherentGPUMemoryMode, charp, 0400);
int nv_first(void);
int nv_first(void) { return 0; }
EXPORT_SYMBOL_GPL(nv_first);
MODULE_LICENSE("GPL");
"""
_OTHER = """#include <linux/module.h>
int nv_first(void);
static int __init start(void) { return nv_first(); }
static void __exit leave(void) { }
module_init(start);
module_exit(leave);
MODULE_LICENSE("GPL");
"""
SMALL_MODULES = ("nvidia", "nvidia-drm", "nvidia-modeset", "nvidia-peermem", "nvidia-uvm")
# What modules of those names, which do nothing, are compiled from.
SMALL_SOURCES = {"nvidia.c": _FIRST} | {f"{name}.c": _OTHER for name in SMALL_MODULES[1:]}
_MAKEFILE = f"""\
obj-m := {" ".join(f"{name}.o" for name in SMALL_MODULES)}
modules:
\t$(MAKE) -C $(SYSOUT) M=$(CURDIR) modules
"""
_COMPRESS = {
    "xz": lambda data: lzma.compress(data, preset=0, check=lzma.CHECK_NONE),
    "gz": lambda data: gzip.compress(data, 1, mtime=0),
}


def manifest(version: str, rows: Iterable[str]) -> str:
    """The text of `.manifest`: its head, and a line a file."""
    head = [
        "NVIDIA Accelerated Graphics Driver for Linux-x86_64",
        version,
        "ignored",
        "nvidia nvidia-modeset nvidia-drm nvidia-uvm nvidia-peermem",
        *["ignored"] * 4,
    ]
    return "\n".join([*head, *rows, ""])


def write_runfile(
    path: Path,
    version: str,
    files: Mapping[str, bytes | Path],
    *,
    compression: str = "xz",
    more: Iterable[tarfile.TarInfo] = (),
) -> Path:
    """Write a file as NVIDIA's are, with `files` in it by path, and `more` members without data."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            data = content if isinstance(content, bytes) else content.read_bytes()
            entry.size = len(data)
            entry.mode = 0o644 if name.endswith((".c", ".h", ".json", ".manifest")) else 0o755
            tar.addfile(entry, io.BytesIO(data))
        for entry in more:
            tar.addfile(entry)
    head = _HEAD.format(skip=_HEAD.count("\n") + 1, version=version)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.encode() + _COMPRESS[compression](buffer.getvalue()))
    return path


def small_runfile(path: Path, version: str, chips: Iterable[Mapping[str, object]]) -> Path:
    """Write a version of a driver, for these cards, with modules that do nothing."""
    sources = {**SMALL_SOURCES, "Makefile": _MAKEFILE}
    files: dict[str, bytes | Path] = {
        f"{folder}/{name}": text.encode()
        for folder in ("kernel-open", "kernel")
        for name, text in sources.items()
    }
    rows = [f"{name} 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:resman" for name in files]
    files["nvidia-smi"] = b"#!/bin/sh\n"
    files["supported-gpus/supported-gpus.json"] = json.dumps({"chips": list(chips)}).encode()
    rows.append("nvidia-smi 0755 UTILITY_BINARY MODULE:nvml")
    files[".manifest"] = manifest(version, rows).encode()
    return write_runfile(path, version, files, compression="gz")
