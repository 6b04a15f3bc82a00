"""The row about `provision matrix`: five kernels against one build."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING

from bench.rows import Group, Row
from bench.timing import seconds_of
from kit.hosts import DISTRO, SMALL_DRIVER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.scene import Scene

__all__ = ["GROUPS"]

_KERNELS = 5
_BUILDS = 3


def _matrix(scene: Scene) -> list[Row]:
    """A matrix of a driver, and single builds of it; packages are there, images and layers not."""
    listed = scene.provision.json("drivers", "kernels", SMALL_DRIVER, "--distro", DISTRO)["kernels"]
    kernels = [row["release"] for row in listed if row["known"] == "works"][:_KERNELS]
    for name in scene.engine.images():
        if name.startswith(f"provision/{SMALL_DRIVER}:") and any(f"-{k}-" in name for k in kernels):
            scene.engine.docker("image", "rm", "--force", name)
    scene.say(f"building {SMALL_DRIVER} for {len(kernels)} kernels")
    for kernel in kernels:
        target = (SMALL_DRIVER, "--kernel", kernel, "--distro", DISTRO)
        # The solver's turn, and the downloads of a first build, are the archive's business.
        _timed(scene, partial(scene.provision.build, *target))
    words = ("--drivers", SMALL_DRIVER, "--distros", DISTRO, "--kernels", ",".join(kernels))
    state = scene.folder / "matrix"
    whole = _timed(scene, partial(_counted, scene, state, *words))
    target = (SMALL_DRIVER, "--kernel", kernels[0], "--distro", DISTRO)
    single = [_timed(scene, partial(scene.provision.build, *target)) for _ in range(_BUILDS)]
    one = statistics.median(single)
    note = f"{whole:.1f} s for {len(kernels)} kernels; one build {one:.1f} s, median of {_BUILDS}"
    what = f"provision matrix, one driver, {len(kernels)} kernels / one build"
    return [Row("matrix", what, whole / one, 5.2, "x", note)]


def _counted(scene: Scene, state: Path, *words: str) -> None:
    said = scene.provision.json("matrix", "--build", *words, "--state", state)
    if said["built_now"] != said["counts"]["built"]:
        raise RuntimeError(f"not all cells were built: {said['counts']}")


def _timed(scene: Scene, build: Callable[[], object]) -> float:
    """Seconds of a build from the base image; what it left in the engine is removed again."""
    before = scene.engine.layers() | set(scene.engine.images())
    taken = seconds_of(build)
    for name in set(scene.engine.images()) - before - {"<none>:<none>"}:
        scene.engine.docker("image", "rm", "--force", name)
    while left := scene.engine.layers() - before:
        removed = [
            scene.engine.docker("image", "rm", layer, check=False).returncode == 0 for layer in left
        ]
        if not any(removed):
            raise RuntimeError(f"the engine keeps layers of a build: {', '.join(sorted(left))}")
    return taken


GROUPS = (Group(("matrix",), _matrix),)
