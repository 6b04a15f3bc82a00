"""What builds for DISTRO begin with: compiler, tools, and the headers of both kernels.

Installing them takes most of a build's minute, and every process of the tests has an engine of its
own. They are kept in the cache as the images and layers that a build leaves; loaded, they are found
as if this engine had made them. A build that needs other packages makes its own, as on any machine.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kit.cache import BUILDS, cache_dir, cached, key_of
from kit.engine import Engine
from kit.kernels import kernels
from kit.process import CommandFailedError, run
from kit.product import DISTRO, IMAGE, Provision
from provision.build.image import with_own_cache

_DRIVER = "v4l2loopback"
_BASES = {"x86_64": IMAGE, "aarch64": "arm64v8/debian:bookworm"}
# Debian 12's Docker reads no zstd itself.
_LOAD = 'zstd -dcq "$1" | docker --host "$2" load --quiet'
_SAVE = 'to=$1 host=$2; shift 2; docker --host "$host" save "$@" | zstd -q -T0 -o "$to"'


def load_toolchains(engine: Engine, machine: str = "x86_64") -> None:
    """Have the layers in an engine that has the base image.

    Where a build of them fails, each test is left to say so for itself.
    """
    try:
        archive = _archive(engine, machine)
    except CommandFailedError:
        return
    _pipe(_LOAD, archive, engine.host)


def _archive(engine: Engine, machine: str) -> Path:
    """An archive of the base image and of the layers upon it; made in `engine` if need be."""
    name = f"toolchains-{_digest(engine.host, machine)}.tar.zst"
    return cached(name, lambda draft: _make(engine, machine, draft))


@cache
def _digest(docker_host: str, machine: str) -> str:
    """Twelve digits that change with the packages, and with how they are installed."""
    provision = Provision(docker_host)
    pins = [provision.json("resolve", *target)["digest"] for target in _targets(machine)]
    # An engine finds only the steps that this user has made.
    probe = with_own_cache({"Dockerfile": b"FROM ${BASE_IMAGE}"}, cache_dir() / "provision")
    return key_of([*pins, probe["Dockerfile"]], *BUILDS)


def _make(engine: Engine, machine: str, draft: Path) -> None:
    provision = Provision(engine.host)
    before = engine.layers()
    for target in _targets(machine):
        built = provision.build(*target)
        # The driver itself is for the tests to build.
        engine.docker("image", "rm", built["image"])
    named = [name for name in engine.images() if name.startswith("provision/toolchain:")]
    # With all their parents: other packages for another kernel may begin with the same steps.
    left = sorted(engine.layers() - before)
    _pipe(_SAVE, draft, engine.host, _BASES[machine], *named, *left)


def _pipe(script: str, *words: str | Path) -> None:
    run(["bash", "-euo", "pipefail", "-c", script, "bash", *words])


def _targets(machine: str) -> list[tuple[str, ...]]:
    if machine == "x86_64":
        return [(_DRIVER, "--kernel", kernel, "--distro", DISTRO) for kernel in kernels()]
    foreign = [kernel.replace("amd64", "arm64") for kernel in kernels()]
    return [
        (_DRIVER, "--kernel", kernel, "--distro", DISTRO, "--arch", "arm64") for kernel in foreign
    ]
