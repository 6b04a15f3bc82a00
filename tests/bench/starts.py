"""Rows about whole starts: runc and Docker with everything applied, and a very large inventory."""

from __future__ import annotations

import json
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from operator import sub
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.rows import Group, Row
from bench.timing import Timed, base_environment
from kit.hosts import IMAGE
from kit.probe import find_program
from kit.product import RUNTIME, write_runtime_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scene import Scene

__all__ = ["GROUPS", "prompt_grace_periods"]

_ASKED = ("OCI_NVIDIA=all", "OCI_SOLARFLARE=all")
_RUNC_ROUNDS = 400
_DOCKER_ROUNDS = 20
_LARGE_ROUNDS = 100
# Milliseconds that everything of ours may add to `runc run`; peers add 12 to 20.
_RUNC_ADDED = 3
_RCU_EXPEDITED = Path("/sys/kernel/rcu_expedited")
_DOCKER_RATIO = 1.05
# Milliseconds for 1,000 devices and 2,000 files.
_LARGE = 25
_GROWTH = 12
_DEVICES, _FILES = 1000, 2000


def _runc(scene: Scene) -> list[Row]:
    runc = _program("runc")
    config = write_runtime_config(
        scene.folder / "runc.toml", scene.config_dir, root=scene.root, runtime=str(runc)
    )
    plain, decorated = scene.bundle("plain"), scene.bundle("decorated", *_ASKED)
    state = scene.folder / "runc-state"

    def timed(name: str, program: Path, bundle: Path) -> list[str | Path]:
        return [program, "--root", state, "run", "--bundle", bundle, f"bench-{name}"]

    programs = [
        # Its files are written again as well: both find the same caches before them.
        Timed(
            "plain",
            timed("plain", runc, plain.folder),
            env=base_environment(),
            restore=plain.restore,
        ),
        Timed(
            "decorated",
            timed("decorated", RUNTIME, decorated.folder),
            env={**base_environment(), "OCI_DECORATOR_CONFIG": str(config)},
            restore=decorated.restore,
        ),
    ]
    with prompt_grace_periods() as are_prompt:
        ms = scene.timer.rounds_ms(programs, _RUNC_ROUNDS)
    # Of each round, as runc's own time drifts by more than what is measured.
    added = median(map(sub, ms["decorated"], ms["plain"]))
    note = (
        f"plain {median(ms['plain']):.1f} ms, with {scene.wanted()} and the library cache"
        f" {median(ms['decorated']):.1f} ms; median difference of {_RUNC_ROUNDS} turns"
        + (", grace periods expedited" if are_prompt else "")
    )
    what = "runc run, two vendors applied: added to plain"
    return [Row("runc", what, added, _RUNC_ADDED, "ms", note)]


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
    docker = _program("docker")

    def timed(name: str, runtime: str, *flags: str) -> Timed:
        words = ["run", "--rm", "--network=none", f"--runtime={runtime}", *flags, IMAGE, "true"]
        environment = {**base_environment(), "DOCKER_HOST": scene.engine.host}
        return Timed(name, [docker, *words], env=environment)

    programs = [
        timed("plain", "runc"),
        timed("unasked", "oci-decorator"),
        timed("asked", "oci-decorator", *(f"--env={asked}" for asked in _ASKED)),
    ]
    ms = scene.timer.medians_ms(programs, _DOCKER_ROUNDS)
    note = (
        f"{{:.0f}} ms; plain {ms['plain']:.0f} ms; median of {_DOCKER_ROUNDS} each, in turns"
    ).format
    return [
        Row(
            "docker",
            "docker run, two vendors applied / plain",
            ms["asked"] / ms["plain"],
            _DOCKER_RATIO,
            "x",
            note(ms["asked"]),
        ),
        Row(
            "docker-idle",
            "docker run, nothing asked for / plain",
            ms["unasked"] / ms["plain"],
            _DOCKER_RATIO,
            "x",
            note(ms["unasked"]),
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Inventory:
    """A host of its own with one vendor, whose files lie in the host's tree one by one."""

    devices: int
    files: int

    def timed(self, scene: Scene) -> Timed:
        """The shim's create with a no-op runtime."""
        name = f"of-{self.files}"
        root = scene.folder / name
        config_dir = root / "etc/oci-decorator/oci-decorator.d"
        config_dir.mkdir(parents=True)
        (config_dir / "large.json").write_text(json.dumps(self._vendor(root)))
        config = write_runtime_config(
            scene.folder / f"{name}.toml", config_dir, root=root, runtime="/bin/true"
        )
        bundle = scene.bundle(name, "OCI_LARGE")
        return Timed(
            name,
            [RUNTIME, "create", "--bundle", bundle.folder, "container"],
            env={"OCI_DECORATOR_CONFIG": str(config)},
            restore=bundle.restore,
        )

    def _vendor(self, root: Path) -> dict[str, Any]:
        (root / "dev").mkdir()
        for minor in range(self.devices):
            number = os.makedev(240, minor)
            os.mknod(root / f"dev/large{minor}", 0o666 | stat.S_IFCHR, number)
        paths = [f"/opt/large/{i // 100}/file{i}" for i in range(self.files)]
        for path in paths:
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        devices = [f"large{minor}" for minor in range(self.devices)]
        feature = {"devices": devices, "miscellaneous": paths}
        return {
            "activation_flag": "OCI_LARGE",
            "driver_feature": ["everything"],
            "inventory": {"everything": feature},
        }


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
    Group(("docker", "docker-idle"), _docker),
    Group(("large", "large-growth"), _large_inventory),
)


def _program(name: str) -> Path:
    found = find_program(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed; `make test` installs it")
    return found
