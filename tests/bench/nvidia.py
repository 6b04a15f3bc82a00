"""Rows about NVIDIA's names: what a container costs that asks as it would ask NVIDIA's toolkit."""

from __future__ import annotations

import json
import os
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
from bench.starts import above_floor, docker_run, edit
from bench.timing import Timed, base_environment
from kit.files import write
from kit.probe import find_program
from kit.process import run
from kit.standins import make_library

_ROUNDS = 400
_DOCKER_ROUNDS = 20
_LIBRARIES = 30
_GPUS = 2
_IDLE = 1
_AT_ONCE = 50
_MANY_ROUNDS = 9
_MANY_RATIO = 1.25
_DOCKER_RATIO = 1.05
_FOLDER = "/usr/lib/x86_64-linux-gnu"
_ASKED = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")


def _settings(scene: Scene, runtime: str) -> Path:
    """Settings of a host of its own, with two GPUs and a driver of thirty libraries."""
    root = scene.folder / "gpus"
    if not root.exists():
        _make_host(root)
    config = scene.folder / f"gpus-{runtime.rpartition('/')[2]}.toml"
    lines = {
        "config-dir": str(root / "etc/oci-decorator/oci-decorator.d"),
        "root": str(root),
        "runtimes": [runtime],
    }
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
    config.write_text(text)
    return config


def _make_host(root: Path) -> None:
    nodes = {f"nvidia{n}": (195, n) for n in range(_GPUS)}
    nodes |= {"nvidiactl": (195, 255), "nvidia-uvm": (511, 0), "nvidia-uvm-tools": (511, 1)}
    (root / "dev").mkdir(parents=True)
    for name, numbers in nodes.items():
        os.mknod(root / "dev" / name, 0o666 | 0o020000, os.makedev(*numbers))
    libraries = [f"{_FOLDER}/libnvidia-{n}.so.535.261.03" for n in range(_LIBRARIES)]
    for library in libraries:
        make_library(root / library.lstrip("/"))
    vendor: dict[str, Any] = {
        "activation_flag": "OCI_NVIDIA",
        "driver_feature": ["compute"],
        "interfaces": ["nvidia"],
        "units": "nvidia[0-9]*",
        "inventory": {"compute": {"devices": list(nodes), "libraries": libraries}},
    }
    facts = {
        "driver_version": "535.261.03",
        "cuda_version": "12.2",
        "devices": [
            {"index": n, "minor": n, "uuid": f"GPU-{n}", "pci": f"0000:0{n + 1}:00.0", "mig": []}
            for n in range(_GPUS)
        ],
    }
    for path, document in (
        ("etc/oci-decorator/oci-decorator.d/nvidia.json", vendor),
        ("run/oci-decorator/devices/nvidia.json", facts),
    ):
        write(root / path, json.dumps(document))


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
    state = {"ociVersion": "1.0.2", "id": "idle", "status": "creating", "pid": os.getpid()}
    read = scene.folder / "nvidia-state.json"
    read.write_text(json.dumps({**state, "bundle": str(bundle.folder)}))
    names = scene.nvidia_names
    programs = [
        Timed("true", ["/bin/true"]),
        Timed(
            "runtime",
            [names / "nvidia-container-runtime", "create", "--bundle", bundle.folder, "idle"],
            env=settings,
        ),
        Timed("hook", [names / "nvidia-container-runtime-hook", "prestart"], stdin=read),
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


def _docker(scene: Scene) -> list[Row]:
    """`--gpus`, which needs a hook of that name in dockerd's PATH; the runtime does its work."""
    _ = scene.root  # With it, the settings that the engine's runtimes read.
    programs = [
        docker_run(scene, "gpus-plain", "runc"),
        docker_run(scene, "gpus-all", "nvidia", "--gpus=all"),
    ]
    ms = scene.timer.medians_ms(programs, _DOCKER_ROUNDS)
    note = (
        f"{ms['gpus-all']:.0f} ms; plain {ms['gpus-plain']:.0f} ms;"
        f" median of {_DOCKER_ROUNDS} each, in turns"
    )
    ratio = ms["gpus-all"] / ms["gpus-plain"]
    what = "docker run --runtime=nvidia --gpus all / plain"
    return [Row("docker-gpus", what, ratio, _DOCKER_RATIO, "x", note)]


GROUPS = (
    Group(("nvidia-create",), _create),
    Group(("many", "many-slowest"), _many),
    Group(("docker-gpus",), _docker),
    Group(("idle-nvidia-runtime", "idle-nvidia-hook"), _idle),
)
