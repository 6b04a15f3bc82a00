"""Rows about `oci-decorator`: what it adds to the start of a container, and its size."""

from __future__ import annotations

import json
from pathlib import Path

from bench.rows import Group, Row
from bench.scene import Scene
from bench.timing import Timed
from kit.cache import REPOSITORY
from kit.process import run
from kit.product import DECORATOR, RUNTIME

_ROUNDS = 400
_IDLE = 1
# Of what the same program takes that is asked for nothing.
_CREATE = 2


def _create(scene: Scene, name: str, *environment: str) -> Timed:
    bundle = scene.bundle(name, *environment)
    return Timed(
        name,
        [RUNTIME, "create", "--bundle", bundle.folder, "container"],
        env={"OCI_DECORATOR_CONFIG": str(scene.shim_config)},
        restore=bundle.restore,
    )


def _idle(scene: Scene) -> list[Timed]:
    """The front ends that are not the runtime itself, for a container that asks for nothing."""
    bundle = scene.bundle("idle")
    where: list[str | Path] = ["--config-dir", scene.host.config_dir, "--root", scene.host.root]
    settings = {"OCI_DECORATOR_CONFIG": str(scene.shim_config)}
    return [
        Timed("precreate", [DECORATOR, "precreate", *where], stdin=bundle.config),
        Timed("hook", [DECORATOR, "prestart"], env=settings, stdin=scene.starting(bundle)),
    ]


def _starts(scene: Scene) -> list[Row]:
    idle = _idle(scene)
    programs = [
        Timed("true", ["/bin/true"]),
        *idle,
        _create(scene, "shim"),
        _create(scene, "both", "OCI_NVIDIA=all", "OCI_SOLARFLARE"),
        _create(scene, "all", "OCI_NVIDIA=all", "OCI_SOLARFLARE=all"),
    ]
    ms = scene.timer.medians_ms(programs, _ROUNDS)
    floor = ms["true"]
    # The shim's runtime is /bin/true.
    nothing_asked = ms["shim"]
    ms["shim"] -= floor
    note = f"{{:.2f}} ms; /bin/true {floor:.2f} ms; median of {_ROUNDS} each, in turns"
    return [
        *[
            Row(
                f"idle-{end}",
                f"no flag set, {end} / true",
                ms[end] / floor,
                _IDLE,
                "x",
                note.format(ms[end]),
            )
            for end in (*(timed.name for timed in idle), "shim")
        ],
        *[
            Row(
                f"create-{name}",
                f"shim create, two vendors, {what}, runtime a no-op / nothing asked for",
                ms[name] / nothing_asked,
                _CREATE,
                "x",
                f"{note.format(ms[name])}; nothing asked for {nothing_asked:.2f} ms",
            )
            for name, what in (("both", "what they are known for"), ("all", scene.wanted()))
        ],
    ]


def _library_cache(scene: Scene) -> list[Row]:
    """By the crate's own benchmark: each start on a fresh overlay, as a new container has it."""
    cargo = ("cargo", "bench", "--locked", "--bench", "library_cache", "--")
    argv: list[str | Path] = [
        REPOSITORY / "hooks/build.sh",
        *cargo,
        scene.host.root,
        scene.base_tree,
    ]
    measured = json.loads(run(argv, live=True).stdout.splitlines()[-1])
    note = (
        f"{measured['libraries']} libraries {measured['native_ms']:.2f} ms; "
        f"ldconfig -r {measured['ldconfig_ms']:.2f} ms; on fresh overlays, in turns"
    )
    what = "library cache / ldconfig -r"
    return [Row("library-cache", what, measured["ratio"], 0.25, "x", note)]


def _size(_scene: Scene) -> list[Row]:
    headers = run(["readelf", "--program-headers", DECORATOR]).stdout
    kind = "needs a loader" if "INTERP" in headers else "static"
    return [Row("size", "oci-decorator binary", DECORATOR.stat().st_size / 1e6, 2, "MB", kind)]


FIRST = (Group(("size",), _size),)
GROUPS = (
    Group(("idle-precreate", "idle-hook", "idle-shim", "create-both", "create-all"), _starts),
    Group(("library-cache",), _library_cache),
)
