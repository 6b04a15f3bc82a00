"""Machines with NVIDIA's GPUs that aren't there, as a program sees them that runs on one.

A mount namespace whose root is a folder: a small Debian, the driver at one of its places, its
nodes, and what it says in /proc. What sandboxes refuse can be refused.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.files import write, write_all
from kit.gpu_kit import debian_root
from kit.gpus import FACTS, VERSION, add_gpus, make_cuda, make_nvml, nodes_of, nvidia_smi, report
from kit.process import Completed, run
from kit.standins import make_library, make_nodes

# https://docs.kernel.org/PCI/sysfs-pci.html: what programs read of a GPU there.
_PCI = {
    "vendor": "0x10de\n",
    "device": "0x1eb8\n",
    "class": "0x030200\n",
    "numa_node": "-1\n",
    "resource": "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 6,
}
_NODES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
# The root, options as JSON, and the words. This machine's programs mount; Python is loaded by the
# time when they are out of sight.
_ENTER = """\
import ctypes, json, os, subprocess, sys
def mount(*words):
    subprocess.run(["mount", *words], check=True)
root, options = sys.argv[1], json.loads(sys.argv[2])
libc = ctypes.CDLL(None)
mount("--rbind", root, root)
os.chdir(root)
for name in ("proc", "sys"):
    mount("--rbind", f"/{name}", name)
for name, folder in options["shown"].items():
    mount("--bind", folder, name)
if options["read-only"]:
    for line in open("/proc/mounts"):
        place = line.split()[1]
        if (place + "/").startswith("/sys/fs/cgroup/"):
            mount("-o", "remount,bind,ro", root + place)
os.makedirs(".machine", exist_ok=True)
subprocess.run(["pivot_root", ".", ".machine"], check=True)
os.chroot(".")
assert libc.umount2(b"/.machine", 2) == 0  # MNT_DETACH
for number in options["without"]:
    assert libc.prctl(24, number, 0, 0, 0) == 0  # PR_CAPBSET_DROP
os.execv(sys.argv[3], sys.argv[3:])
"""
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27}
# No program of NVIDIA's looks there.
_REPORTER = "/opt/reporter"
_MULTIARCH = "usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True)
class GpuHost:
    """A machine; `make` lays it out, and it can be called with words that run on it."""

    folder: Path
    facts: dict[str, Any] = field(default_factory=lambda: FACTS)
    # What the nvidia-smi that is found first says of them in its report, if not the same.
    reported: dict[str, Any] | None = None
    # Whether its GPUs add.
    is_right: bool = True
    # Below it, the driver has libraries and programs.
    driver: str = ""
    libraries: str = _MULTIARCH
    programs: str = "usr/bin"
    has_smi: bool = True
    has_proc: bool = True
    has_cgroups: bool = True
    # Capabilities that nobody there has.
    without: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def make(self) -> GpuHost:
        run(["tar", "-xJf", debian_root(), "-C", self.folder])
        for name, minor in _NODES.items():
            os.mknod(self.root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
            (self.root / "dev" / name).chmod(0o666)
        for name in ("kit", "out", "var/tmp"):
            (self.root / name).mkdir(mode=0o1777)
        write(self.root / "etc/os-release", 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="A Debian"\n')
        nodes = [*nodes_of(self.facts), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
        make_nodes(self.root / "dev", nodes)
        for gpu in self.facts["devices"]:
            write_all(self.folder / "pci" / gpu["pci"], _PCI)
        if self.has_proc:
            add_gpus(self.folder, facts=self.facts)
        self._add_driver()
        return self

    def _add_driver(self) -> None:
        place = self.root / self.driver / self.libraries
        place.mkdir(parents=True, exist_ok=True)
        if self.driver:
            # A driver in a container of its own has a whole distro there.
            write(self.root / self.driver / "etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\n')
        make_nvml(place, "NODES", facts=self.facts)
        make_cuda(place, *([] if self.is_right else ["WRONG"]))
        for name in ("libnvidia-ptxjitcompiler", "libnvidia-cfg"):
            make_library(place / f"{name}.so.{VERSION}")
            (place / f"{name}.so.1").symlink_to(f"{name}.so.{VERSION}")
        if self.has_smi:
            programs = self.root / self.driver / self.programs
            write(programs / "nvidia-smi", nvidia_smi().read_bytes(), 0o755)
        if self.has_smi and self.reported:
            text = report(self.reported)
            script = f'[ "$*" = "-q -x" ] || exec /usr/bin/nvidia-smi "$@"\ncat <<END\n{text}END\n'
            write(self.root / _REPORTER[1:] / "nvidia-smi", f"#!/bin/sh\n{script}", 0o755)

    def __call__(
        self,
        kit: Path,
        words: Sequence[str],
        *,
        limit_s: float,
        shown: Mapping[str, Path] | None = None,
    ) -> Completed:
        """Run words on it, with a folder as /kit; what they write to /out is in `out`.

        `shown` lies over its files and folders besides, by their names below its root.
        """
        every = {"kit": kit, "sys/bus/pci/devices": self.folder / "pci"}
        if self.has_proc:
            every["proc/driver"] = self.folder / "proc/driver"
        every |= shown or {}
        options = {
            "shown": {name: str(path) for name, path in every.items()},
            "read-only": not self.has_cgroups,
            "without": [_CAPABILITIES[name] for name in self.without],
        }
        enter = ["unshare", "--mount", sys.executable, "-c", _ENTER, str(self.root)]
        path = {"PATH": f"{_REPORTER}:{os.environ['PATH']}"}
        words = [*enter, json.dumps(options), *words]
        return run(words, check=False, timeout_s=limit_s, env=path)

    @property
    def out(self) -> Path:
        return self.root / "out"
