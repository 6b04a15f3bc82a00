"""The row about `make demo` where nothing of it is there yet but packages of Debian."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.rows import Group, Row
from kit.cache import REPOSITORY
from kit.process import run

if TYPE_CHECKING:
    from bench.scene import Scene

__all__ = ["GROUPS"]

_TARGET_S = 360
_LIMIT_S = 1800
# What the make and the virtual environment around us would hand down, and what changes the demo.
_FOREIGN = (
    *("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH", "VIRTUAL_ENV", "DOCKER_HOST"),
    *("DEMO_DRIVER", "DEMO_DISTRO", "DEMO_KERNEL"),
)


def _from_nothing(scene: Scene) -> list[Row]:
    """The last commit, cloned, with empty caches: environment, hook, base image and driver."""
    folder = Path(tempfile.mkdtemp(dir=scene.folder))
    clone, cache = folder / "clone", folder / "cache"
    run(["git", "clone", "--quiet", f"file://{REPOSITORY}", clone])
    empty = {"PROVISION_TEST_CACHE": str(cache / "tests"), "XDG_CACHE_HOME": str(cache)}
    without = [word for name in _FOREIGN for word in ("-u", name)]
    scene.say("make demo in a fresh clone")
    try:
        begun = time.monotonic()
        run(["env", *without, "make", "build"], cwd=clone, env=empty, timeout_s=_LIMIT_S)
        built = time.monotonic() - begun
        run(["env", *without, "make", "demo"], cwd=clone, env=empty, timeout_s=_LIMIT_S)
        taken = time.monotonic() - begun
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    note = f"of these {built:.0f} s for the virtual environment and oci-decorator"
    return [Row("demo", "make demo in a fresh clone, caches empty", taken, _TARGET_S, "s", note)]


GROUPS = (Group(("demo",), _from_nothing),)
