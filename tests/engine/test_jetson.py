"""A Jetson's containers have what NVIDIA's lists name: our arm64 program, emulated, in Docker.

The lists and where they lead are of Jetson Linux R36, cut down; the libraries are made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.arm64 import MACHINE, run_foreign_programs
from kit.cache import REPOSITORY
from kit.engine import Engine
from kit.files import write
from kit.foreign import emulator
from kit.hosts import DISTRO, Host
from kit.probe import need_programs
from kit.process import run
from kit.product import base_archive, write_runtime_config
from kit.standins import make_library, stand_in

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(6)]

_BASE = "arm64v8/debian:bookworm"
_IMAGE = "l4t:1"
_LIBRARIES = "/usr/lib/aarch64-linux-gnu"
_DRIVER = f"{_LIBRARIES}/nvidia"
_COMPAT = "/usr/local/cuda-12.6/compat"
_RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n"
_NODES = ["dri/card0", "dri/renderD128", "nvgpu/igpu0/ctrl", "nvhost-gpu", "nvmap"]
_LISTS = {
    "devices.csv": """\
dev, /dev/dri/renderD*
dev, /dev/nvgpu/igpu0/ctrl
dev, /dev/nvhost-gpu
dev, /dev/nvhost-vic
dev, /dev/nvmap
""",
    "drivers.csv": f"""\
lib, {_DRIVER}/libcuda.so.1.1
lib, {_DRIVER}/libnvrm_gpu.so
lib, {_DRIVER}/libnvdla_runtime.so
lib, {_DRIVER}/nvidia_icd.json
sym, {_LIBRARIES}/libcuda.so
sym, {_DRIVER}/libcuda.so
sym, {_DRIVER}/libcuda.so.1
sym, /etc/vulkan/icd.d/nvidia_icd.json
dir, /lib/firmware/tegra23x
""",
    # Only for images that ask for all lists.
    "cuda.csv": f"dir, {_COMPAT}\nsym, /usr/local/cuda\n",
}
_LINKS = {
    f"{_LIBRARIES}/libcuda.so": "nvidia/libcuda.so",
    f"{_DRIVER}/libcuda.so": "libcuda.so.1.1",
    f"{_DRIVER}/libcuda.so.1": "libcuda.so.1.1",
    "/etc/vulkan/icd.d/nvidia_icd.json": f"../../..{_DRIVER}/nvidia_icd.json",
}
_MORE_LINKS = {"/usr/local/cuda": "cuda-12.6"}
# Images for Jetson have empty files where the board's libraries belong, and links to them.
_STUBS = f"""
mkdir -p {_DRIVER}
: >{_DRIVER}/libcuda.so.1.1
ln -s libcuda.so.1.1 {_DRIVER}/libcuda.so.1
"""
# The loader's own search: it says so if it finds none, or one that isn't for this machine.
_LOADS = "LD_PRELOAD=libcuda.so.1 LD_TRACE_LOADED_OBJECTS=1 /bin/true 2>&1 | grep cuda"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What starts our program for arm64 under NVIDIA's name."""
    run_foreign_programs()
    need_programs(f"{MACHINE}-linux-gnu-gcc")
    run([REPOSITORY / "hooks/build.sh", "build"], env={"ARCH": MACHINE}, timeout_s=1200)
    folder = tmp_path_factory.mktemp("programs")
    run([REPOSITORY / f"build/{MACHINE}/oci-decorator", "install-links", folder])
    # The emulator of Debian 12 has no openat2.
    program = folder / "nvidia-container-runtime"
    return write(folder / "nvidia", f'#!/bin/sh\nexec {emulator()} {program} "$@"\n', 0o755)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The root of a Jetson."""
    folder = tmp_path_factory.mktemp("board")
    host = Host(folder / "root", folder / "config.toml")
    files = [f"{_DRIVER}/nvidia_icd.json", "/lib/firmware/tegra23x/gpu.bin", f"{_COMPAT}/README"]
    stand_in(host, {"inventory": {"all": {"devices": _NODES, "miscellaneous": files}}})
    for name in ("libcuda.so.1.1", "libnvrm_gpu.so"):
        make_library(host.root / _DRIVER[1:] / name, compiler=f"{MACHINE}-linux-gnu-gcc")
    for name, target in {**_LINKS, **_MORE_LINKS}.items():
        path = host.root / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    (host.root / "etc/nv_tegra_release").write_text(_RELEASE)
    lists = host.root / "etc/nvidia-container-runtime/host-files-for-container.d"
    lists.mkdir(parents=True)
    for name, text in _LISTS.items():
        (lists / name).write_text(text)
    write_runtime_config(host.config, host.config_dir, root=host.root)
    return host


@pytest.fixture(scope="module")
def docker(program: Path, board: Host) -> Iterator[Engine]:
    """An engine whose runtime is the board's."""
    environment = {"OCI_DECORATOR_CONFIG": str(board.config)}
    with Engine(runtimes={"nvidia": program}, environment=environment) as engine:
        archive = base_archive(engine, DISTRO, machine=MACHINE)
        engine.docker("load", "--quiet", "--input", archive)
        engine.docker("run", "--name=stubs", "--network=none", _BASE, "sh", "-euc", _STUBS)
        engine.docker("commit", "stubs", _IMAGE)
        engine.docker("rm", "stubs")
        yield engine


def _in_container(docker: Engine, script: str, *asks: str) -> list[str]:
    words = ("run", "--rm", "--network=none", "--runtime=nvidia", *asks, _IMAGE, "sh", "-c", script)
    return docker.docker(*words).stdout.splitlines()


@pytest.mark.parametrize("every_list", [False, True])
def test_a_container_has_what_the_lists_name(docker: Engine, *, every_list: bool) -> None:
    asks = ["--env=NVIDIA_VISIBLE_DEVICES=all"]
    links = _LINKS
    if every_list:
        asks.append("--env=NVIDIA_REQUIRE_JETPACK=csv-mounts=all")
        links = {**_LINKS, **_MORE_LINKS}
    names = " ".join(links)
    # What the board lacks is left out.
    script = f"""
        uname -m
        (cd /dev; find dri nv* -type c | sort)
        for name in {names}; do readlink $name; done
        {_LOADS}
        cat {_DRIVER}/nvidia_icd.json /lib/firmware/tegra23x/gpu.bin
        ls -d {_COMPAT} 2>/dev/null
        echo $NVIDIA_VISIBLE_DEVICES
    """
    said = _in_container(docker, script, *asks)
    nodes = [name for name in _NODES if name != "dri/card0"]
    assert said.pop(0) == MACHINE
    assert [said.pop(0) for _ in nodes] == nodes
    assert [said.pop(0) for _ in links] == list(links.values())
    assert said.pop(0).split()[0] in {f"{_DRIVER}/libcuda.so.1", "libcuda.so.1"}
    files = [f"{_DRIVER}/nvidia_icd.json", "/lib/firmware/tegra23x/gpu.bin"]
    assert said == [*files, *([_COMPAT] if every_list else []), "void"]


def test_the_loader_takes_the_boards_library(docker: Engine) -> None:
    """Not the empty one of the image, which it could not read."""
    (loaded,) = _in_container(docker, _LOADS, "--env=NVIDIA_VISIBLE_DEVICES=all")
    assert "ERROR" not in loaded
    assert "libcuda.so.1" in loaded


def test_a_container_that_does_not_ask_has_nothing(docker: Engine) -> None:
    script = f"ls -d /dev/nv* /dev/dri 2>/dev/null; stat -c %s {_DRIVER}/libcuda.so.1.1"
    assert _in_container(docker, script) == ["0"]
