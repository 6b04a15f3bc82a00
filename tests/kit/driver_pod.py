"""What NVIDIA's GPU Operator asks of a driver, by our page, and what stands in for modprobe.

The page was read from the operator's sources: docs/reference/gpu-operator.md. A kernel without
modules, as a container's is, has programs in place of modprobe and rmmod, by kmod(8) and the
kernel's own files: they change files that a test lays out as /proc and /sys have them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kit.cache import REPOSITORY
from kit.files import write_all
from kit.pages import blocks, table

_PAGE = (REPOSITORY / "docs/reference/gpu-operator.md").read_text()


def _rows(heading: str) -> list[list[str]]:
    return [[cell.strip("`") for cell in row] for row in table(_PAGE, heading)]


# Modules that its driver-manager unloads before another driver pod loads its own.
UNLOADED = {row[0] for row in _rows("The driver pod")}
# Files below /run/nvidia that the image writes.
FILES = [row[0] for row in _rows("Files of the driver pod") if row[1] == "image"]
# What is looked for in the driver's root: a pattern, and the folders.
SEARCHED = [(row[0], re.findall(r"[^`, ]+", row[1])) for row in _rows("The root of the driver")]
# Folders in which a node's own nvidia-smi is looked for.
NODE_FOLDERS = [row[0] for row in _rows("A driver of the node")]
# Device nodes: name, major, minor.
NODES = [tuple(row) for row in _rows("Device nodes")]
# Version, kernel, distro, and the tags by which an image is found.
TAGS = [tuple(row) for row in _rows("Names of images")]

# Where a container or a node with these programs has the files that they change.
_HOST = "/host"
MODPROBE = f"""\
#!/bin/sh
host={_HOST}
echo "modprobe $*" >>"$host/calls"
cat /etc/modprobe.d/*.conf >>"$host/calls" 2>/dev/null
while :; do
    case $1 in
        -d) folder=$2; shift 2 ;;
        -S) kernel=$2; shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
[ ! -e "$host/refused/$1" ] || exit 1
if [ -e "$host/proc/modules" ]; then
    {{ echo "$1 1 0 - Live 0x0"; cat "$host/proc/modules"; }} >"$host/proc/new"
    mv "$host/proc/new" "$host/proc/modules"
fi
mkdir -p "$host/sys/module/$1"
for file in "$folder/lib/modules/$kernel/"*.ko; do
    name=${{file##*/}}
    [ "$(echo "${{name%.ko}}" | tr - _)" = "$1" ] || continue
    tr '\\0' '\\n' <"$file" |
        awk -F= '$1 == "srcversion" {{ print $2 }}' >"$host/sys/module/$1/srcversion"
done
for file in initstate refcnt; do echo live >"$host/sys/module/$1/$file"; done
"""
RMMOD = f"""\
#!/bin/sh
echo "rmmod $*" >>{_HOST}/calls
awk -v gone="$1" '$1 != gone' {_HOST}/proc/modules >{_HOST}/proc/new
mv {_HOST}/proc/new {_HOST}/proc/modules
rm -r "{_HOST}/sys/module/$1"
"""
# nvidia-smi(1) ends with 12 without its library, and a shell with these others without the program.
# All else that it says here is for want of a GPU.
_SMI = """\
#!/bin/sh
/opt/driver/usr/bin/nvidia-smi "$@"
code=$?
case $code in 12 | 126 | 127) exit $code ;; esac
"""


def startup_probe() -> str:
    """The script by which the operator finds a pod's driver ready."""
    config, _ = _manifests()
    return str(config["data"]["startup-probe.sh"])


def documents(image: str, kernel: str, digest: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The probe's ConfigMap and the DaemonSet, for an image and a kernel's label."""
    return _manifests({"IMAGE": image, "KERNEL": kernel, "DIGEST": digest})


def _manifests(values: Mapping[str, str] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    (text,) = (text for language, text in blocks(_PAGE) if language == "yaml")
    for name, value in (values or {}).items():
        text = re.sub(rf": {name}$", f": {value}", text, flags=re.MULTILINE)
    config, daemonset = yaml.safe_load_all(text)
    return config, daemonset


def lay_out(root: Path, kernel: str) -> None:
    """Lay out what a pod sees of a node with NVIDIA's GPU, on which nothing is loaded."""
    files = {
        "proc/sys/kernel/osrelease": f"{kernel}\n",
        "proc/modules": "",
        "proc/devices": "Character devices:\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n",
        "proc/driver/nvidia/gpus/0000:0a:00.0/information": "Device Minor: \t 0\n",
        "sys/module/firmware_class/parameters/path": "",
        "calls": "",
        "programs/modprobe": MODPROBE,
        "programs/rmmod": RMMOD,
        "programs/nvidia-smi": _SMI,
        "drivers/nvidia.conf": "NVreg_One=1\nNVreg_Two=a=b;c\n",
        "drivers/nvidia-uvm.conf": "uvm_disable_hmm=1\n",
    }
    write_all(root, files, 0o755)
    (root / "dev").mkdir()


def loaded(root: Path) -> set[str]:
    """The modules that are loaded on a node that was laid out."""
    return {line.split()[0] for line in (root / "proc/modules").read_text().splitlines()}


def stood_in(daemonset: dict[str, Any], root: str, manager: str) -> dict[str, Any]:
    """The DaemonSet with what stands in, on a node that has a laid out one in the folder `root`.

    In place of the operator's driver-manager, a shell does what that does where no module is
    loaded, or the digest is that of before.
    """
    pod = daemonset["spec"]["template"]["spec"]
    (first,), (container,) = pod["initContainers"], pod["containers"]
    script = "umount -l /run/nvidia/driver 2>/dev/null; rm -f /run/nvidia/nvidia-driver.pid"
    first |= {"image": manager, "command": ["sh", "-c", script], "args": []}
    for one in (first, container):
        one["imagePullPolicy"] = "Never"
    (search,) = (one for one in pod["volumes"] if one["name"] == "firmware-search-path")
    search["hostPath"]["path"] = f"{root}/sys/module/firmware_class/parameters/path"
    for name, (place, path) in {
        "host": (_HOST, ""),
        "modules": ("/sys/module", "sys/module"),
        "parameters": ("/drivers", "drivers"),
        "modprobe": ("/usr/sbin/modprobe", "programs/modprobe"),
        "rmmod": ("/usr/sbin/rmmod", "programs/rmmod"),
        "smi": ("/usr/bin/nvidia-smi", "programs/nvidia-smi"),
    }.items():
        container["volumeMounts"].append({"name": name, "mountPath": place})
        pod["volumes"].append({"name": name, "hostPath": {"path": f"{root}/{path}"}})
    return daemonset
