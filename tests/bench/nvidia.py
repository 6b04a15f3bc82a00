"""Rows about NVIDIA's names: what a container costs that asks as it would ask NVIDIA's toolkit."""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import DEVNULL
from time import perf_counter
from typing import Any

from bench.rows import Group, Row
from bench.scene import Scene
from bench.starts import above_floor, edit
from bench.timing import Timed, base_environment
from kit.files import write
from kit.gpus import VERSION, nodes_of, plain_gpus
from kit.hosts import Host
from kit.nvidia_host import LIBRARY_FOLDER
from kit.probe import find_program
from kit.process import run
from kit.product import write_runtime_config
from kit.standins import stand_in

_ROUNDS = 400
_LIBRARIES = 30
_GPUS = 2
_IDLE = 1
_AT_ONCE = 50
_MANY_ROUNDS = 9
_MANY_RATIO = 1.25
_ASKED = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
_FACTS = plain_gpus(_GPUS)
_VENDOR: dict[str, Any] = {
    "activation_flag": "OCI_NVIDIA",
    "driver_feature": ["compute"],
    "interfaces": ["nvidia"],
    "units": "nvidia[0-9]*",
    "inventory": {
        "compute": {
            "devices": [*nodes_of(_FACTS), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"],
            "libraries": [
                f"{LIBRARY_FOLDER}/libnvidia-{n}.so.{VERSION}" for n in range(_LIBRARIES)
            ],
        }
    },
}


def _settings(scene: Scene, runtime: str) -> Path:
    """Settings of a host of its own, with two GPUs and a driver of thirty libraries."""
    host = Host(scene.folder / "gpus", scene.folder / f"gpus-{runtime.rpartition('/')[2]}.toml")
    if not host.root.exists():
        stand_in(host, _VENDOR)
        host.write_vendor("nvidia", _VENDOR)
        write(host.root / "run/oci-decorator/devices/nvidia.json", json.dumps(_FACTS))
    return write_runtime_config(host.config, host.config_dir, root=host.root, runtime=runtime)


def _create(scene: Scene) -> list[Row]:
    program = scene.nvidia_names / "nvidia-container-runtime"
    row = above_floor(scene, "nvidia-create", program, partial(_settings, scene), _ASKED)
    return [replace(row, note=f"{row.note}; {_GPUS} GPUs and {_LIBRARIES} libraries")]


def _many(scene: Scene) -> list[Row]:
    """Containers that start at once, as when a node boots: created and started."""
    runc = str(find_program("runc"))
    ours = scene.nvidia_names / "nvidia-container-runtime"
    bundle = scene.bundle("many", *_ASKED)
    asked = bundle.config.read_text()
    edit(bundle, ours, _settings(scene, "/bin/true"))
    programs = {"floor": (runc, bundle.config.read_text()), "ours": (str(ours), asked)}
    environment = {**base_environment(), "OCI_DECORATOR_CONFIG": str(_settings(scene, runc))}

    def command(program: str, verb: str, *words: str | Path) -> None:
        argv = [program, "--root", scene.folder / "many-state", verb, *words]
        # The container keeps what it inherits open: no pipes.
        subprocess.run(argv, env=environment, stdin=DEVNULL, stdout=DEVNULL, check=True)

    def start(program: str, folder: Path) -> float:
        began = perf_counter()
        command(program, "create", "--bundle", folder, folder.name)
        command(program, "start", folder.name)
        return perf_counter() - began

    def end(folder: Path) -> None:
        command(runc, "delete", "--force", folder.name)
        run(["umount", folder / "rootfs"])
        shutil.rmtree(folder)

    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in range(_MANY_ROUNDS):
            for name, (program, specification) in programs.items():
                folders = [bundle.folder / f"{name}-{n}" for n in range(_AT_ONCE)]
                for folder in folders:
                    _make_overlay(folder, bundle.folder / "rootfs", specification)
                began = perf_counter()
                each = list(pool.map(partial(start, program), folders))
                seconds[name].append((perf_counter() - began, max(each)))
                list(pool.map(end, folders))
    whole, slowest = (
        {name: median(rounds[i] for rounds in taken) for name, taken in seconds.items()}
        for i in range(2)
    )
    return [
        Row(
            name,
            f"{_AT_ONCE} containers at once{what} / runc given the specs already edited",
            s["ours"] / s["floor"],
            _MANY_RATIO,
            "x",
            f"{s['ours']:.2f} s; runc alone {s['floor']:.2f} s; median of {_MANY_ROUNDS} turns",
        )
        for name, what, s in (("many", "", whole), ("many-slowest", ", the slowest", slowest))
    ]


def _make_overlay(folder: Path, lower: Path, specification: str) -> None:
    """A bundle whose root is an empty layer on `lower`, as engines make it."""
    for name in ("upper", "work", "rootfs"):
        (folder / name).mkdir(parents=True)
    (folder / "config.json").write_text(specification)
    layers = f"lowerdir={lower},upperdir={folder / 'upper'},workdir={folder / 'work'}"
    run(["mount", "-t", "overlay", "-o", layers, "overlay", folder / "rootfs"])


def _idle(scene: Scene) -> list[Row]:
    """Each of NVIDIA's names, for a container that asks for nothing."""
    settings = {"OCI_DECORATOR_CONFIG": str(_settings(scene, "/bin/true"))}
    bundle = scene.bundle("nvidia-idle")
    names = scene.nvidia_names
    programs = [
        Timed("true", ["/bin/true"]),
        Timed(
            "runtime",
            [names / "nvidia-container-runtime", "create", "--bundle", bundle.folder, "idle"],
            env=settings,
        ),
        Timed(
            "hook",
            [names / "nvidia-container-runtime-hook", "prestart"],
            stdin=scene.starting(bundle),
        ),
    ]
    ms = scene.timer.medians_ms(programs, _ROUNDS)
    floor = ms["true"]
    ms["runtime"] -= floor  # Its runtime is /bin/true.
    note = f"{{:.2f}} ms; /bin/true {floor:.2f} ms; median of {_ROUNDS} each, in turns".format
    return [
        Row(
            f"idle-nvidia-{name}",
            f"nothing asked of nvidia-container-runtime{suffix} / true",
            ms[name] / floor,
            _IDLE,
            "x",
            note(ms[name]),
        )
        for name, suffix in (("runtime", ""), ("hook", "-hook"))
    ]


GROUPS = (
    Group(("nvidia-create",), _create),
    Group(("many", "many-slowest"), _many),
    Group(("idle-nvidia-runtime", "idle-nvidia-hook"), _idle),
)
