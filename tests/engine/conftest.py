"""Engines, host trees and builds that the engine tests share.

One private podman a session beside the Docker engine. A build of NVIDIA's modules takes minutes, so
there is one; what needs a driver fast takes v4l2loopback.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.bundles import overlaid
from kit.cache import BUILDS, REPOSITORY, cached, key_of
from kit.engine import Engine
from kit.fileserver import served
from kit.foreign import program_root
from kit.hosts import DISTRO, IMAGE, NEW_KERNEL, Containers, Host
from kit.podman import Podman
from kit.probe import can_mount, need, need_programs
from kit.product import RUNTIME, Provision, base_archive, write_runtime_config
from kit.released import make_release, repository_of
from kit.runfile import SMALL_MODULES, SMALL_SOURCES
from kit.signed_registry import Fleet, signed_fleet
from kit.toolchains import load_toolchains


def _printed(source: str) -> str:
    """`printf` of C as recipes take it: on one line, and without the braces of placeholders."""
    text = source.replace("{", r"\0173").replace("}", r"\0175").replace("\n", r"\n")
    return f"printf %b {shlex.quote(text)}"


_MAKE = (
    "mkdir small; "
    + "".join(f"{_printed(text)} >small/{name}; " for name, text in SMALL_SOURCES.items())
    + f"echo 'obj-m := {' '.join(f'{name}.o' for name in SMALL_MODULES)}' >small/Makefile; "
    'make -C {kernel_build} "M=$PWD/small" modules'
)


@pytest.fixture(scope="session")
def podman(engine: Engine, shim_config: Path) -> Iterator[Podman]:
    """A private podman with the same base image and runtime."""
    need_programs("podman")
    environment = {"OCI_DECORATOR_CONFIG": str(shim_config)}
    with Podman({"oci-decorator": RUNTIME}, environment) as podman:
        podman.load(base_archive(engine, DISTRO))
        yield podman


@pytest.fixture(scope="session")
def containers(engine: Engine, podman: Podman) -> Containers:
    """Both ways to start a container."""
    return Containers(engine, podman)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A web server's folder, and its address."""
    folder = tmp_path_factory.mktemp("release")
    with served(folder) as url:
        yield folder, url


@pytest.fixture(scope="session")
def release(engine: Engine, site: tuple[Path, str]) -> Path:
    """The folder of a signed release, which takes minutes to make, on a web server."""
    folder, url = site
    return make_release(folder, engine, url)


@pytest.fixture(scope="session")
def repository(release: Path, site: tuple[Path, str]) -> str:
    """Address of the release's repositories."""
    return repository_of(release, site[1])


@pytest.fixture(scope="session")
def provision(engine: Engine) -> Provision:
    """The command `provision` with the private engine."""
    return Provision(engine.host)


@pytest.fixture
def host(tmp_path: Path, shim_config: Path) -> Host:
    """A fresh, empty host, which the shim reads from now on."""
    root = tmp_path / "host"
    root.mkdir()
    host = Host(root, shim_config)
    host.config_dir.mkdir(parents=True)
    write_runtime_config(shim_config, host.config_dir, root=root)
    return host


@pytest.fixture(scope="session")
def base_root(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the base image, to be copied and not written to."""
    return engine.unpack(IMAGE, tmp_path_factory.mktemp("base") / "root")


@pytest.fixture
def fresh_root(base_root: Path, tmp_path: Path) -> Iterator[Path]:
    """A container's root for a bundle: the base image with a layer of its own on top."""
    need(can_mount(), "the right to mount", "run as root with CAP_SYS_ADMIN")
    with overlaid(base_root, tmp_path / "layer") as root:
        yield root


@pytest.fixture(scope="module")
def fleet(
    engine: Engine, first_small_build: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """A registry with the small driver, pushed under the name that hosts look for, and signed."""
    # Built by then: what follows takes no minutes.
    assert first_small_build["image"]
    with signed_fleet(engine, tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def cosign() -> Path:
    """The program cosign of Debian 13; Debian 12 has none."""
    return program_root("trixie", "cosign", alone=True) / "usr/bin/cosign"


@pytest.fixture(scope="module")
def toolchains_again(engine: Engine) -> Iterator[None]:
    """For tests of what removes the layers that builds share: those after them count on these."""
    yield
    load_toolchains(engine)


@pytest.fixture(scope="session")
def small_nvidia(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's recipe as we ship it, which makes small modules of the same names."""
    driver = tmp_path_factory.mktemp("catalogue") / "nvidia"
    shutil.copytree(REPOSITORY / "driver_images/nvidia", driver)
    recipe = driver / "driver.toml"
    modules = [f"small/{name}.ko" for name in SMALL_MODULES]
    build = f"""[flavours.open.build]
archive = "usr/src/nvidia-open-kernel.tar.xz"
directory = "modules/nvidia-open-kernel"
command = ["sh", "-ec", {json.dumps(_MAKE)}]
modules = {json.dumps(modules)}
"""
    text, found = re.subn(
        r"(?ms)^\[flavours\.open\.build\]\n.*?(?=^\[)", lambda _: f"{build}\n", recipe.read_text()
    )
    assert found == 1
    recipe.write_text(text)
    return driver.parent


@pytest.fixture(scope="session")
def nvidia_build(engine: Engine, provision: Provision) -> dict[str, Any]:
    """NVIDIA's open modules on NEW_KERNEL, and the user space.

    Compiled once for a Pin and for the code that builds, which takes minutes, and kept.
    """
    target = ("nvidia", "--version", "latest", "--kernel", NEW_KERNEL, "--distro", DISTRO)
    key = key_of(provision.json("resolve", *target)["digest"], *BUILDS)

    def build(draft: Path) -> None:
        engine.docker("save", "--output", draft, provision.build(*target)["image"])

    archive = cached(f"nvidia-artifact-{key}.tar", build)
    engine.docker("load", "--quiet", "--input", archive)
    return provision.build(*target)
