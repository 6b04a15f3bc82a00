"""Files in the layout of NVIDIA's own, by hand: made-up ones, and one of Debian's real packages.

The head, the tar file and its list are as in NVIDIA's own files; the driver in the second is real.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from kit.cache import cached
from kit.hosts import DISTRO, NEW_KERNEL
from kit.process import run
from kit.product import Provision

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
# What of Debian's packages is what in NVIDIA's list: MODULE by the beginning of a name.
_MODULES = (
    ("libcuda", "gpgpu", "CUDA_LIB"),
    ("libnvidia-ml", "nvml", "UTILITY_LIB"),
    ("libnvidia-cfg", "installer", "UTILITY_LIB"),
    ("libnvidia-opencl", "gpgpu", "OPENCL_LIB"),
    ("libnvcuvid", "nvcuvid", "NVCUVID_LIB"),
    ("libnvidia-encode", "encodeapi", "ENCODEAPI_LIB"),
    ("libnvidia-opticalflow", "opticalflow", "CUDA_LIB"),
    ("libnvidia-", "gpgpu", "CUDA_LIB"),
)


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
    """Write a version of a driver with modules that do nothing, in both flavours.

    Args:
        chips: What its `supported-gpus.json` says of cards.
    """
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


def debian_runfile(provision: Provision) -> tuple[Path, str]:
    """The driver of Debian's packages as a file of NVIDIA's, and its version; from the cache.

    With the open modules' source and their prebuilt objects, and the libraries and programs.
    """
    target = ("nvidia", "--version", "latest", "--kernel", NEW_KERNEL, "--distro", DISTRO)
    pin = provision.json("resolve", *target)
    version = pin["driver"]["version"]

    def make(draft: Path) -> None:
        work = draft.with_suffix(".work")
        shutil.rmtree(work, ignore_errors=True)
        context, tree = work / "context", work / "tree"
        provision("build", *target, "--render", context)
        for source in pin["sources"]:
            run(["dpkg-deb", "--extract", context / "sources" / source["sha256"], tree])
        packed = tree / "usr/src/nvidia-open-kernel.tar.xz"
        run(["tar", "--extract", "--xz", "--file", packed, "--directory", tree])
        files = _members(tree, version)
        # Half of the size is debug information of the prebuilt objects.
        for name in files:
            if name.endswith(".o_binary"):
                run(["strip", "--strip-debug", files[name]])
        listed = manifest(version, _rows(files))
        (work / ".manifest").write_text(listed)
        write_runfile(draft, version, {".manifest": work / ".manifest", **files})
        shutil.rmtree(work)

    return cached(f"NVIDIA-Linux-x86_64-{version}.run", make), version


def _members(tree: Path, version: str) -> dict[str, Path]:
    source = tree / "modules/nvidia-open-kernel"
    files = {
        f"kernel-open/{path.relative_to(source)}": path
        for path in sorted(source.rglob("*"))
        if path.is_file()
    }
    libraries = sorted(tree.rglob(f"lib*.so.{version}"))
    files |= {path.name: path for path in libraries if not path.is_symlink()}
    for name in ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-modprobe", "nvidia-persistenced"):
        found = [path for path in sorted(tree.rglob(name)) if _is_program(path)]
        files |= dict.fromkeys([name], found[0]) if found else {}
    files |= {f"firmware/{path.name}": path for path in sorted(tree.rglob("gsp_*.bin"))}
    (icd,) = tree.rglob("OpenCL/vendors/nvidia.icd")
    return files | {"nvidia.icd": icd}


def _is_program(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"


def _rows(files: Mapping[str, Path]) -> Iterable[str]:
    for name in files:
        if name.startswith("kernel-open/"):
            yield f"{name} 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:resman"
        elif name.startswith("firmware/"):
            yield f"{name} 0644 FIRMWARE INHERIT_PATH_DEPTH:1 MODULE:gsp"
        elif name == "nvidia.icd":
            yield f"{name} 0644 CUDA_ICD MODULE:gpgpu"
        elif name.startswith("lib"):
            module, kind = next((m, k) for start, m, k in _MODULES if name.startswith(start))
            plain = name.partition(".so.")[0]
            symlink = kind if kind != "CUDA_LIB" else "CUDA"
            yield f"{name} 0755 {kind} NATIVE / MODULE:{module}"
            yield f"{plain}.so.1 0000 {symlink}_SYMLINK NATIVE / {name} MODULE:{module}"
            yield f"{plain}.so 0000 {symlink}_SYMLINK NATIVE / {plain}.so.1 MODULE:{module}"
        else:
            yield f"{name} 0755 UTILITY_BINARY MODULE:nvml"
