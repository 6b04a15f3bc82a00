"""Rows about NVIDIA's names: what a container costs that asks as it would ask NVIDIA's toolkit."""

from __future__ import annotations

import json
import os
from operator import sub
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.rows import Group, Row
from bench.starts import prompt_grace_periods
from bench.timing import Timed, base_environment
from kit.hosts import IMAGE
from kit.probe import find_program
from kit.standins import make_library

if TYPE_CHECKING:
    from pathlib import Path

    from bench.scene import Bundle, Scene

__all__ = ["GROUPS"]

_ROUNDS = 400
_DOCKER_ROUNDS = 20
_LIBRARIES = 30
_GPUS = 2
# Milliseconds; NVIDIA's 1.20 adds 32 on a machine of this size.
_ADDED = 3
_IDLE = 1.4
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
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(json.dumps(document))


def _create(scene: Scene) -> list[Row]:
    runc = str(find_program("runc"))
    config = _settings(scene, runc)
    plain, asked = scene.bundle("nvidia-plain"), scene.bundle("nvidia-asked", *_ASKED)
    state = scene.folder / "nvidia-state"

    def timed(name: str, program: Path | str, bundle: Bundle) -> Timed:
        words: list[str | Path] = ["--root", state, "run", "--bundle", bundle.folder, name]
        environment = {**base_environment(), "OCI_DECORATOR_CONFIG": str(config)}
        return Timed(name, [program, *words], env=environment, restore=bundle.restore)

    programs = [
        timed("nvidia-plain", runc, plain),
        timed("nvidia-asked", scene.nvidia_names / "nvidia-container-runtime", asked),
    ]
    with prompt_grace_periods() as are_prompt:
        ms = scene.timer.rounds_ms(programs, _ROUNDS)
    added = median(map(sub, ms["nvidia-asked"], ms["nvidia-plain"]))
    note = (
        f"plain {median(ms['nvidia-plain']):.1f} ms, with {_GPUS} GPUs and {_LIBRARIES} libraries"
        f" {median(ms['nvidia-asked']):.1f} ms; median difference of {_ROUNDS} turns"
        + (", grace periods expedited" if are_prompt else "")
    )
    what = "runc run by nvidia-container-runtime, all GPUs: added to plain"
    return [Row("nvidia-create", what, added, _ADDED, "ms", note)]


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
    docker = str(find_program("docker"))

    def timed(name: str, *flags: str) -> Timed:
        words = ["run", "--rm", "--network=none", *flags, IMAGE, "true"]
        environment = {**base_environment(), "DOCKER_HOST": scene.engine.host}
        return Timed(name, [docker, *words], env=environment)

    programs = [
        timed("gpus-plain", "--runtime=runc"),
        timed("gpus-all", "--runtime=nvidia", "--gpus=all"),
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
    Group(("docker-gpus",), _docker),
    Group(("idle-nvidia-runtime", "idle-nvidia-hook"), _idle),
)
