"""A row about a production host: what its containers lose while a driver is built beside them."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing

from bench.rows import Group, Row
from bench.scene import Scene
from kit.hosts import IMAGE, load_base
from provision.build.image import BuildLog, run_build
from provision.build.workspace import load_settings

_LOOP = "i=0; while [ $i -lt 3000000 ]; do i=$((i+1)); done"
# As long as the work takes on slow machines.
_BUILD_S = 90


def _each(processors: int, command: str) -> str:
    return f"for n in $(seq {processors}); do ({command}) & done; wait"


def _beside(scene: Scene) -> list[Row]:
    """A container with work for all processors, alone and beside a build that has, too."""
    engine, processors = scene.engine, os.cpu_count() or 1
    load_base(engine)
    root = scene.folder / "beside"
    settings = root / "etc/provision/provision.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[engine]\nhost = "{engine.host}"\n')
    busy = _each(processors, f"timeout {_BUILD_S} sh -c 'while :; do :; done'")
    recipe = f"FROM {IMAGE}\nRUN {busy} || : {time.time_ns()}\n"

    def work() -> float:
        begun = time.monotonic()
        engine.docker("run", "--rm", IMAGE, "sh", "-c", _each(processors, _LOOP))
        return time.monotonic() - begun

    def build() -> None:
        with closing(load_settings(root).engine()) as client, BuildLog(root / "log") as log:
            files = {"Dockerfile": recipe.encode()}
            run_build(client, "a load", files, log, state=root, build_args={})

    alone = work()
    building = threading.Thread(target=build)
    building.start()
    # Until its processes run.
    time.sleep(5)
    beside = work()
    is_over = not building.is_alive()
    building.join()
    note = f"{beside:.1f} s; alone {alone:.1f} s; {processors} loops each"
    return [
        Row(
            "beside-a-build",
            "work of a container on all processors, beside a build / alone",
            beside / alone,
            1.3,
            "x",
            f"{note}; the build ended before!" if is_over else note,
        )
    ]


GROUPS = (Group(("beside-a-build",), _beside),)
