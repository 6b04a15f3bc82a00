"""Rows about whole starts: runc and Docker with everything applied, and a very large inventory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import truediv
from pathlib import Path
from statistics import median

from bench.rows import Group, Row
from bench.scene import Bundle, Scene
from bench.timing import Timed, base_environment
from kit.hosts import IMAGE, Host
from kit.probe import installed_program
from kit.process import run
from kit.product import RUNTIME, write_runtime_config
from kit.standins import stand_in

_ASKED = ("OCI_NVIDIA=all", "OCI_SOLARFLARE=all")
_RUNC_ROUNDS = 400
_DOCKER_ROUNDS = 20
_LARGE_ROUNDS = 100
_RUNC_RATIO = 1.15
_RCU_EXPEDITED = Path("/sys/kernel/rcu_expedited")
_DOCKER_RATIO = 1.05
# Milliseconds for 1,000 devices and 2,000 files.
_LARGE = 25
_GROWTH = 12
_DEVICES, _FILES = 1000, 2000


def _runc(scene: Scene) -> list[Row]:
    def settings(runtime: str) -> Path:
        path = scene.folder / f"above-{Path(runtime).name}.toml"
        return write_runtime_config(
            path, scene.host.config_dir, root=scene.host.root, runtime=runtime
        )

    row = above_floor(scene, "runc", RUNTIME, settings, _ASKED)
    return [replace(row, note=f"{row.note}; {scene.wanted()} and the library cache")]


def above_floor(
    scene: Scene,
    name: str,
    program: Path,
    settings: Callable[[str], Path],
    asked: Sequence[str],
) -> Row:
    """`runc run` by `program`, over runc with the specification that `program` makes of it.

    runc's own work for the mounts and nodes that a driver needs is in both. `settings` writes
    ours with a low-level runtime of that name.
    """
    runc = str(installed_program("runc"))
    state = scene.folder / f"{name}-state"
    floor, ours = (scene.bundle(f"{name}-{end}", *asked) for end in ("floor", "ours"))
    edit(floor, program, settings("/bin/true"))

    def timed(end: str, argv0: Path | str, bundle: Bundle) -> Timed:
        words: list[str | Path] = ["--root", state, "run", "--bundle", bundle.folder]
        environment = {**base_environment(), "OCI_DECORATOR_CONFIG": str(settings(runc))}
        return Timed(end, [argv0, *words, f"{name}-{end}"], env=environment, restore=bundle.restore)

    programs = [timed("floor", runc, floor), timed("ours", program, ours)]
    with prompt_grace_periods() as are_prompt:
        ms = scene.timer.rounds_ms(programs, _RUNC_ROUNDS)
    # Of each round, as runc's own time drifts by more than what is measured.
    ratio = median(map(truediv, ms["ours"], ms["floor"]))
    note = (
        f"{median(ms['ours']):.1f} ms; runc alone {median(ms['floor']):.1f} ms;"
        f" median of {_RUNC_ROUNDS} turns" + (", grace periods expedited" if are_prompt else "")
    )
    what = f"runc run by {program.name} / runc given what that makes of the spec"
    return Row(name, what, ratio, _RUNC_RATIO, "x", note)


def edit(bundle: Bundle, program: Path, settings: Path) -> None:
    """Let the bundle's specification be what `program` makes of it; its runtime is a no-op."""
    run(
        [program, "create", "--bundle", bundle.folder, "edited"],
        env={"OCI_DECORATOR_CONFIG": str(settings)},
    )
    saved, config = bundle.restore[0]
    shutil.copy2(config, saved)


@contextmanager
def prompt_grace_periods() -> Iterator[bool]:
    """Have the kernel end RCU's grace periods at once; return whether it can.

    runc waits for several of them when it moves a process from cgroup to cgroup, with driver or
    without: some milliseconds more or less by chance, which is more than what is measured.
    Source: https://docs.kernel.org/RCU/Design/Requirements/Requirements.html, rcu_expedited.
    """
    if not os.access(_RCU_EXPEDITED, os.W_OK):
        yield False
        return
    before = _RCU_EXPEDITED.read_text()
    _RCU_EXPEDITED.write_text("1")
    try:
        yield True
    finally:
        _RCU_EXPEDITED.write_text(before)


def _docker(scene: Scene) -> list[Row]:
    """`--gpus` needs a hook of that name in dockerd's PATH; the runtime does its work."""
    _ = scene.host  # With it, the settings that the engine's runtimes read.
    environment = {**base_environment(), "DOCKER_HOST": scene.engine.host}

    def timed(name: str, runtime: str, *flags: str) -> Timed:
        words = ["run", "--rm", "--network=none", f"--runtime={runtime}", *flags, IMAGE, "true"]
        return Timed(name, [installed_program("docker"), *words], env=environment)

    programs = [
        timed("plain", "runc"),
        timed("docker", "oci-decorator", *(f"--env={asked}" for asked in _ASKED)),
        timed("docker-idle", "oci-decorator"),
        timed("docker-gpus", "nvidia", "--gpus=all"),
    ]
    ms = scene.timer.medians_ms(programs, _DOCKER_ROUNDS)
    plain = ms["plain"]
    how = f"plain {plain:.0f} ms; median of {_DOCKER_ROUNDS} each, in turns"
    return [
        Row(
            name,
            f"docker run, {what} / plain",
            ms[name] / plain,
            _DOCKER_RATIO,
            "x",
            f"{ms[name]:.0f} ms; {how}",
        )
        for name, what in (
            ("docker", "two vendors applied"),
            ("docker-idle", "nothing asked for"),
            ("docker-gpus", "--gpus all by the runtime nvidia"),
        )
    ]


@dataclass(frozen=True, slots=True)
class _Inventory:
    """A host of its own with one vendor, whose files lie in the host's tree one by one."""

    devices: int
    files: int

    def timed(self, scene: Scene) -> Timed:
        """The shim's create with a no-op runtime."""
        name = f"of-{self.files}"
        feature = {
            "devices": [f"large{minor}" for minor in range(self.devices)],
            "miscellaneous": [f"/opt/large/{i // 100}/file{i}" for i in range(self.files)],
        }
        vendor = {
            "activation_flag": "OCI_LARGE",
            "driver_feature": ["everything"],
            "inventory": {"everything": feature},
        }
        host = Host(scene.folder / name, scene.folder / f"{name}.toml")
        stand_in(host, vendor)
        host.write_vendor("large", vendor)
        config = write_runtime_config(
            host.config, host.config_dir, root=host.root, runtime="/bin/true"
        )
        bundle = scene.bundle(name, "OCI_LARGE")
        return Timed(
            name,
            [RUNTIME, "create", "--bundle", bundle.folder, "container"],
            env={"OCI_DECORATOR_CONFIG": str(config)},
            restore=bundle.restore,
        )


def _large_inventory(scene: Scene) -> list[Row]:
    inventories = (_Inventory(_DEVICES // 10 * n, _FILES // 10 * n) for n in (0, 1, 10))
    programs = [inventory.timed(scene) for inventory in inventories]
    ms = scene.timer.medians_ms([Timed("true", ["/bin/true"]), *programs], _LARGE_ROUNDS)
    nothing, small, large = (ms[program.name] for program in programs)
    note = (
        f"a tenth of it {small:.2f} ms, nothing of it {nothing:.2f} ms;"
        f" /bin/true {ms['true']:.2f} ms"
    )
    return [
        Row("large", "shim create, 1,000 devices and 2,000 files", large, _LARGE, "ms", note),
        Row(
            "large-growth",
            "ten times the inventory, above an empty one",
            (large - nothing) / (small - nothing),
            _GROWTH,
            "x",
            "10 x is linear, 100 x the square",
        ),
    ]


GROUPS = (
    Group(("runc",), _runc),
    Group(("docker", "docker-idle", "docker-gpus"), _docker),
    Group(("large", "large-growth"), _large_inventory),
)
