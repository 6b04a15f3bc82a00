"""The row about a fleet: a thousand hosts, five kernels, one registry that fails twice."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

from bench.rows import Group, Row
from bench.scene import Scene
from kit.probe import find_program
from kit.registry import RegistryServer
from kit.rollout import Rollout

_HOSTS = 1000


def _rollout(scene: Scene) -> list[Row]:
    """A rollout in simulated time; what is real and what is not, `kit.rollout` says."""
    if find_program("docker-registry") is None:
        scene.say("the row 'fleet' is left out: docker-registry is not installed (.ci/setup test)")
        return []
    # A thousand hosts that sync their files would measure one disk.
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
    with tempfile.TemporaryDirectory(
        prefix="bench-", dir=memory if memory.is_dir() else scene.folder
    ) as name:
        folder = Path(name)
        (folder / "registry").mkdir()
        with closing(RegistryServer(folder / "registry")) as registry:
            figures = Rollout(folder, registry, hosts=_HOSTS).run()
    for what, figure in figures.table():
        scene.say(f"  {what:<38} {figure}")
    for failed in figures.failed[:10]:
        scene.say(f"  failed: {failed}")
    is_right = figures.builds == 5 and not figures.compiled and not figures.failed
    note = f"{figures.seconds:.0f} s{'' if is_right else '; not as it should be!'}"
    what = f"bytes out of the registry / needed, {_HOSTS} hosts, five kernels, an hour"
    return [Row("fleet", what, figures.ratio, 1.02, "x", note)]


GROUPS = (Group(("fleet",), _rollout),)
