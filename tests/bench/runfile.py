"""Rows about NVIDIA's .run: taking it apart, and the driver for one kernel after another.

The file is in NVIDIA's layout and holds the driver of Debian's packages (`kit.runfile`).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.rows import Group, Row
from bench.timing import seconds_of
from kit.cache import REPOSITORY
from kit.engine import Engine
from kit.fileserver import served
from kit.hosts import DISTRO, NEW_KERNEL, OLD_KERNEL, load_base
from kit.process import run
from kit.product import Provision
from kit.runfile import debian_runfile
from provision.build.context_files import ensure_parts
from provision.build.workspace import load_settings
from provision.pin import RunfileSource
from provision.sources.runfile import read_head

if TYPE_CHECKING:
    from bench.scene import Scene

__all__ = ["GROUPS"]

_TURNS = 3
_BY_HAND = 'tail -c "+$1" "$2" | xz -d | tar -x -C "$3"'
_PINNED = ("nvidia", "--distro", DISTRO, "--version", "535")


def _unpacked(scene: Scene) -> list[Row]:
    """A .run in the package store against what unpacks it by hand; a part of the work is ours."""
    file, version = debian_runfile(scene.provision)
    with file.open("rb") as stream:
        begins = read_head(stream, file.name).offset + 1
    source = RunfileSource(
        url=f"https://vendor.example/{file.name}",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        version=version,
        architecture="x86_64",
    )
    ours, theirs = [], []
    for _ in range(_TURNS):
        folder = Path(tempfile.mkdtemp(dir=scene.folder))
        by_hand = ("sh", "-euc", _BY_HAND, "sh", str(begins), file, folder)
        theirs.append(seconds_of(partial(run, by_hand)))
        shutil.rmtree(folder)
        settings = replace(load_settings(folder), state=folder / "state")
        ours.append(seconds_of(partial(ensure_parts, settings, source, lambda: file)))
        shutil.rmtree(folder)
    note = (
        f"{file.stat().st_size / 1e6:.0f} MB: {min(ours):.1f} s; by hand {min(theirs):.1f} s;"
        f" the faster of {_TURNS} each, in turns"
    )
    what = "a .run taken apart / tail, xz -d, tar x"
    return [Row("unpack-run", what, min(ours) / min(theirs), 1.2, "x", note)]


def _next(scene: Scene) -> list[Row]:
    """A first build with nothing in the package store, and the one for the next kernel."""
    file, _version = debian_runfile(scene.provision)
    folder = Path(tempfile.mkdtemp(dir=scene.folder))
    vendor, driver = folder / "vendor", folder / "drivers/nvidia"
    vendor.mkdir()
    (vendor / file.name).symlink_to(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (vendor / f"{file.name}.sha256sum").write_text(f"{digest}  {file.name}\n")
    shutil.copytree(REPOSITORY / "driver_images/nvidia", driver)
    recipe = driver / "driver.toml"
    # An engine of its own: the demo's knows the layers of other builds.
    with served(vendor) as url, Engine() as engine:
        load_base(engine)
        text = re.sub(r"https://us\.download\S+/", f"{url}/", recipe.read_text())
        # Debian's packages serve no version then.
        recipe.write_text(text.replace('versions = "<560"', 'versions = "<1"'))
        provision = Provision(engine.host, {"XDG_CACHE_HOME": str(folder / "cache")})
        scene.say("building NVIDIA's driver for two kernels")
        taken, shared = [], []
        for kernel in (OLD_KERNEL, NEW_KERNEL):
            words = (*_PINNED, "--kernel", kernel, "--catalogue", driver.parent)
            begun = time.monotonic()
            steps = provision.build(*words)["steps"]
            taken.append(time.monotonic() - begun)
            shared.append(
                sum(step["seconds"] for step in steps if "make -j" in step["instruction"])
            )
    note = (
        f"first {taken[0]:.0f} s, of these {shared[0]:.0f} s make; next {taken[1]:.0f} s, of these"
        f" {shared[1]:.0f} s make, which depends on the kernel: the core is prebuilt in both"
    )
    what = "NVIDIA's driver for the next kernel / its first build"
    return [Row("nvidia-next", what, taken[1] / taken[0], 0.4, "x", note)]


GROUPS = (Group(("unpack-run",), _unpacked), Group(("nvidia-next",), _next))
