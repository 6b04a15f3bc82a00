"""Rows about `provision`: its answers, an unchanged build, the artifact's size, the build."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.rows import Group, Row
from bench.scene import TARGET, Scene
from bench.timing import Timed, base_environment, seconds_of
from kit.hosts import DISTRO, NEW_KERNEL
from kit.process import run
from kit.product import Provision

_ROUNDS = 15
_BUILDS = 2
_MAKE = "make "
# The newest kernel, as after an upgrade.
_UPGRADE = ("nvidia", "--version", "latest", "--kernel", NEW_KERNEL, "--distro", DISTRO)
# In a rendered Dockerfile, what the modules' make follows.
_JOBS = "ARG JOBS=1\nRUN "


def _answers(scene: Scene) -> list[Row]:
    env = {**base_environment(), **Provision().variables()}
    program = Provision().program
    programs = [
        Timed("python", [sys.executable, "-I", "-c", "pass"], env=env),
        Timed("--help", [program, "--help"], env=env),
        Timed("facts", [program, "facts"], env=env),
    ]
    ms = scene.timer.medians_ms(programs, _ROUNDS)
    floor = f"python itself {ms['python'] / 1e3:.2f} s; median of {_ROUNDS} each, in turns"
    return [
        Row("help", "provision --help", ms["--help"] / 1e3, 0.3, "s", floor),
        Row("facts", "provision facts", ms["facts"] / 1e3, 0.3, "s", floor),
    ]


def _unchanged(scene: Scene) -> list[Row]:
    before = (scene.built, scene.engine.layers())
    env = {**base_environment(), **scene.provision.variables()}
    again = Timed("build", [scene.provision.program, "build", *TARGET], env=env)
    ms = scene.timer.medians_ms([again], _ROUNDS)
    started = scene.engine.layers() != before[1]
    note = "a build was started!" if started else f"no build started; median of {_ROUNDS}"
    what = "provision build again, nothing changed"
    return [Row("unchanged", what, ms["build"] / 1e3, 1, "s", note)]


def _image_size(scene: Scene) -> list[Row]:
    words = ("image", "inspect", "--format", "{{.Size}}", scene.built["image"])
    image = int(scene.engine.docker(*words).stdout)
    paths = [
        path
        for path in scene.host.entry("nvidia").rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    files = sum(path.stat().st_size for path in paths)
    note = f"image {image / 1e6:.1f} MB, {len(paths)} files {files / 1e6:.1f} MB"
    return [Row("image-size", "artifact image / its files", image / files, 1.1, "x", note)]


def _build(scene: Scene) -> list[Row]:
    """The modules in the driver container against the same make outside; minutes."""
    scene.say(f"compiling NVIDIA's modules {2 * _BUILDS} times, in a container and outside")
    built, outside = [], []
    for _ in range(_BUILDS):
        built.append(_make_inside(scene))
        outside.append(_make_outside(scene))
    # What disturbs a build makes it longer, never shorter.
    (inside, rest), outer = min(built), min(outside)
    note = (
        f"{inside:.0f} s in docker build; {outer:.0f} s in a chroot of the same tree;"
        f" the faster of {_BUILDS} each, in turns"
    )
    return [
        Row(
            "build",
            "NVIDIA's modules for a new kernel in docker build / outside",
            inside / outer,
            1.15,
            "x",
            note,
        ),
        Row(
            "build-rest",
            "apt, sources, collecting, image export",
            rest,
            None,
            "s",
            "the other steps of that build",
        ),
    ]


def _make_inside(scene: Scene) -> tuple[float, float]:
    """Seconds of the recipe's make in a build from the beginning, and of all its other steps."""
    steps = scene.provision.build(*_UPGRADE, "--rebuild")["steps"]
    make = next(step for step in steps if _MAKE in step["instruction"])
    return make["seconds"], sum(step["seconds"] for step in steps if step is not make)


def _make_outside(scene: Scene) -> float:
    """Seconds of the recipe's make, in a plain folder with the same tools and sources."""
    tree, command = _before_make(scene)
    words = ("env", f"JOBS={os.cpu_count() or 1}", "sh", "-c", command)
    taken = seconds_of(partial(run, ["chroot", tree, *words]))
    shutil.rmtree(tree, ignore_errors=True)
    return taken


def _before_make(scene: Scene) -> tuple[Path, str]:
    """The build stage's files as they are when make starts, and the command that starts it."""
    folder = Path(tempfile.mkdtemp(dir=scene.folder))
    context = folder / "context"
    scene.provision("build", *_UPGRADE, "--render", context)
    before, _, build = (context / "Dockerfile").read_text().rpartition(_JOBS)
    (context / "Dockerfile").write_text(before)
    image = "provision-bench:before-make"
    base = scene.provision.json("resolve", *_UPGRADE)["base"]["image"]
    arguments = ("--build-arg", f"BASE_IMAGE={base}", "--network", "host")
    scene.engine.docker("build", "--tag", image, *arguments, context)
    tree = scene.engine.unpack(image, folder / "outside")
    scene.engine.docker("image", "rm", image)
    return tree, build[: build.index("\n\n")].replace("\\\n", " ")


FIRST = (Group(("help", "facts"), _answers),)
GROUPS = (
    Group(("unchanged",), _unchanged),
    Group(("image-size",), _image_size),
    Group(("build", "build-rest"), _build),
)
