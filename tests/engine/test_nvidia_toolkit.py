"""What NVIDIA's own toolkit makes of a driver, beside ours, on a machine without GPUs."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from kit.cache import REPOSITORY
from kit.files import write
from kit.foreign import program_root
from kit.gpu_host import GpuHost
from kit.gpus import FACTS, VERSION, make_nvml, plain_gpus
from kit.nvidia_toolkit import toolkit_programs
from kit.pages import table
from kit.probe import can_mount, need, need_programs
from kit.process import run
from kit.product import DECORATOR, Provision
from kit.standins import make_library, make_nodes
from provision.catalogue import Recipe
from provision.documents import load_toml

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(3)]

_MODES = ("gds", "gdrcopy", "imex", "mofed", "nvswitch")
_MULTIARCH = "usr/lib/x86_64-linux-gnu"
# A driver as NVIDIA's installer and Debian's packages leave it, besides what `GpuHost` has.
_LIBRARIES = (
    *(
        f"{name}.so.{VERSION}"
        for name in (
            "libEGL_nvidia",
            "libGLX_nvidia",
            "libcudadebugger",
            "libnvcuvid",
            "libnvidia-allocator",
            "libnvidia-eglcore",
            "libnvidia-encode",
            "libnvidia-fbc",
            "libnvidia-glcore",
            "libnvidia-glsi",
            "libnvidia-gpucomp",
            "libnvidia-newer",
            "libnvidia-ngx",
            "libnvidia-nvvm",
            "libnvidia-opencl",
            "libnvidia-opticalflow",
            "libnvidia-rtcore",
            "libnvidia-tls",
            "libnvidia-vulkan-producer",
            "libnvoptix",
            "vdpau/libvdpau_nvidia",
        )
    ),
    "libnvidia-egl-gbm.so.1.1.2",
    "libnvidia-egl-wayland.so.1.1.13",
    "libnvidia-egl-wayland2.so.1.0.0",
    "../xorg/modules/drivers/nvidia_drv.so",
    f"../xorg/modules/extensions/libglxserver_nvidia.so.{VERSION}",
)
_PROGRAM_NAMES = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-persistenced",
    "nvidia-xconfig",
)
_FILES = (
    "etc/OpenCL/vendors/nvidia.icd",
    "etc/cufile.json",
    "etc/vulkan/icd.d/nvidia_icd.json",
    f"lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin",
    "run/udev/data/b",
    "usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "usr/share/nvidia/nvoptix.bin",
    "usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
)
_VERSIONED = re.compile(r"(/lib[^/]+\.so)\.[0-9]+\.[0-9.]+$")
# Links that are no soname.
_LINKS = {
    f"{_MULTIARCH}/gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1",
    f"{_MULTIARCH}/libGLX_indirect.so.0": f"libGLX_nvidia.so.{VERSION}",
    f"{_MULTIARCH}/libnvidia-vulkan-producer.so": f"libnvidia-vulkan-producer.so.{VERSION}",
    "usr/lib/xorg/modules/extensions/libglxserver_nvidia.so": f"libglxserver_nvidia.so.{VERSION}",
}
_SOCKETS = ("run/nvidia-fabricmanager", "run/nvidia-persistenced")
_NODES = (
    "gdrdrv",
    "infiniband/rdma_cm",
    "infiniband/uverbs0",
    "nvidia-caps-imex-channels/channel0",
    "nvidia-caps-imex-channels/channel3",
    "nvidia-fs0",
    "nvidia-fs1",
    "nvidia-modeset",
    "nvidia-nvswitch0",
    "nvidia-nvswitchctl",
)
# What differs on purpose: the page says why.
_DIFFERENT = {
    (what.strip("`").replace("VERSION", VERSION).replace("LIBRARIES", f"/{_MULTIARCH}"), who)
    for what, who, _why in table(
        (REPOSITORY / "docs/reference/cdi.md").read_text(), "Beside NVIDIA's"
    )
}


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's programs, and ours under its name."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    need_programs("go", "gcc", "unshare")
    folder = tmp_path_factory.mktemp("kit")
    shutil.copytree(toolkit_programs(), folder / "theirs")
    (folder / "ours").mkdir()
    shutil.copy2(DECORATOR, folder / "ours/nvidia-ctk")
    return folder


@pytest.fixture(scope="module")
def machine(kit: Path, tmp_path_factory: pytest.TempPathFactory) -> GpuHost:
    """A machine with all that a driver may have, and our vendor file for it."""
    facts = FACTS
    machine = GpuHost(tmp_path_factory.mktemp("machine"), facts=facts).make()
    root = machine.root
    for name in _LIBRARIES:
        path = root / os.path.normpath(f"{_MULTIARCH}/{name}")
        # NVIDIA's sonames end with 1, not with the version.
        first = path.with_name(path.name.replace(f".{VERSION}", ".1"))
        make_library(first)
        first.rename(path)
    for name in _PROGRAM_NAMES:
        write(root / "usr/bin" / name, "#!/bin/sh\n", 0o755)
    for name in _FILES:
        write(root / name, "{}\n")
    for name, target in _LINKS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    for name in _SOCKETS:
        (root / name).mkdir(parents=True)
        run(
            ["python3", "-c", "import socket; socket.socket(socket.AF_UNIX).bind('socket')"],
            cwd=root / name,
        )
    (root / "tmp/nvidia-mps").mkdir(parents=True)
    make_nodes(root / "dev", _NODES)
    # The sonames.
    assert machine(kit, ["/sbin/ldconfig"], limit_s=60).returncode == 0
    vendor = Provision("unix:///nowhere")("drivers", "vendor-file", "nvidia", "--root", root)
    write(root / "etc/oci-decorator/oci-decorator.d/nvidia.json", vendor.stdout)
    write(root / "run/oci-decorator/devices/nvidia.json", json.dumps(facts))
    return machine


def _generated(machine: GpuHost, kit: Path, whose: str, *options: str) -> dict[str, Any]:
    words = [f"/kit/{whose}/nvidia-ctk", "cdi", "generate", "--output", "/out/cdi.json", *options]
    done = machine(kit, words, limit_s=60)
    assert done.returncode == 0, done.output
    document: dict[str, Any] = json.loads((machine.out / "cdi.json").read_text())
    return document


def _gives(document: dict[str, Any]) -> set[str]:
    """What a container has by each device: nodes, variables, and the names of files."""
    found: set[str] = {document["kind"]}
    common = document.get("containerEdits", {})
    for device in document["devices"]:
        for edits in (common, device["containerEdits"]):
            given = [node["path"] for node in edits.get("deviceNodes", [])]
            given += edits.get("env", [])
            files = [mount["containerPath"] for mount in edits.get("mounts", [])]
            # The hook of the library cache makes sonames, which end with 1 here.
            sonames = [_VERSIONED.sub(r"\1.1", file) for file in files]
            given += [*files, *sonames]
            for hook in edits.get("hooks", []):
                given += _of_hook(hook["args"])
            found |= {f"{device['name']} {one}" for one in given}
    return found


def _of_hook(words: list[str]) -> list[str]:
    """The links that a hook makes, else its name; that of a cache: its folders."""
    name, *options = [word for word in words[1:] if word != "hook"]
    if name == "create-symlinks":
        return [link.partition("::")[2] for link in options if "::" in link]
    if name == "update-ldcache":
        return [f"{name} {folder}" for folder in options if folder.startswith("/")]
    return [name]


def _different(ours: set[str], theirs: set[str]) -> set[tuple[str, str]]:
    """What only one of them gives by any device."""
    sides = {"ours": ours - theirs, "NVIDIA's": theirs - ours}
    return {(one.partition(" ")[2] or one, side) for side, found in sides.items() for one in found}


def test_our_specification_gives_what_nvidias_gives(kit: Path, machine: GpuHost) -> None:
    ours = _gives(_generated(machine, kit, "ours", "--mode", "nvml"))
    theirs = _gives(_generated(machine, kit, "theirs", "--mode", "nvml"))
    # One of the GPUs is divided.
    assert "1:0 /dev/nvidia-caps/nvidia-cap12" in theirs
    assert _different(ours, theirs) == set(_DIFFERENT)


@pytest.mark.parametrize("mode", _MODES)
def test_our_specification_of_related_drivers_gives_what_nvidias_gives(
    kit: Path, machine: GpuHost, mode: str
) -> None:
    ours = _gives(_generated(machine, kit, "ours", "--mode", mode))
    theirs = _gives(_generated(machine, kit, "theirs", "--mode", mode))
    assert "all NVIDIA_VISIBLE_DEVICES=void" in ours
    assert _different(ours, theirs) <= set(_DIFFERENT)


@pytest.mark.parametrize(
    ("suite", "version"), [("bookworm", "535.261.03"), ("trixie", "550.163.01")]
)
def test_dra_starts_with_the_versions_that_the_recipe_says(
    tmp_path: Path, suite: str, version: str
) -> None:
    """As its prestart does: the real nvidia-smi, by the library in the driver's root."""
    recipe = load_toml(REPOSITORY / "driver_images/nvidia/driver.toml", Recipe)
    assert recipe.dra is not None
    package = program_root(suite, "nvidia-smi", alone=True, components="main contrib non-free")
    library = make_nvml(tmp_path)
    words = ["env", "-i", f"LD_PRELOAD={library}", f"LD_LIBRARY_PATH={tmp_path}"]
    words += [f"{package}/usr/lib/nvidia/current/nvidia-smi", "--version"]
    done = run(words, check=False)
    assert (done.returncode == 0) == (recipe.dra.refuses(version) is None), done.output


@pytest.mark.parametrize("nodes_in", ["the node's /dev", "the root"])
def test_nvidias_runtime_looks_for_nodes_below_the_root_that_it_is_given(
    kit: Path, tmp_path: Path, nodes_in: str
) -> None:
    """Without CDI, as the page says: why the operator's `cdi.enabled` has to stay."""
    facts = plain_gpus(1)
    driver = "run/nvidia/driver"
    machine = GpuHost(tmp_path, facts=facts, driver=driver, libraries="usr/lib64").make()
    if nodes_in == "the root":
        shutil.copytree(machine.root / "dev", machine.root / driver / "dev", copy_function=_node)
    # It starts nothing: what it wrote into the specification is read.
    write(machine.root / "bundle/runc", "#!/bin/sh\n", 0o755)
    settings = (
        f'[nvidia-container-cli]\nroot = "/{driver}"\n'
        '[nvidia-container-runtime]\nmode = "auto"\nruntimes = ["/bundle/runc"]\n'
    )
    write(machine.root / "etc/nvidia-container-runtime/config.toml", settings)
    spec = {
        "ociVersion": "1.0.0",
        "process": {"cwd": "/", "args": ["x"], "env": ["NVIDIA_VISIBLE_DEVICES=all"]},
        "root": {"path": "root"},
        "linux": {},
    }
    write(machine.root / "bundle/config.json", json.dumps(spec))
    words = ["/kit/theirs/nvidia-container-runtime", "create", "--bundle", "/bundle", "x"]
    done = machine(kit, words, limit_s=60)
    assert done.returncode == 0, done.output
    edited = json.loads((machine.root / "bundle/config.json").read_text())
    assert any("libcuda.so" in mount["destination"] for mount in edited["mounts"])
    nodes = {node["path"] for node in edited["linux"].get("devices", [])}
    assert ("/dev/nvidia0" in nodes) == (nodes_in == "the root")
    # With CDI, they are the node's.
    roots = ("--driver-root", f"/{driver}", "--dev-root", "/")
    assert "all /dev/nvidia0" in _gives(_generated(machine, kit, "theirs", *roots))


def _node(source: str, target: str) -> None:
    found = Path(source).stat()
    os.mknod(target, found.st_mode, found.st_rdev)
