"""Guests, and the engine on this machine that builds for them at native speed."""

from __future__ import annotations

import socket
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from kit.duo import duo_catalogue
from kit.engine import Engine
from kit.guest import DEBIAN_12
from kit.guest.product import pack_product
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER, load_base
from kit.probe import is_root, need, need_programs
from kit.product import DECORATOR, Provision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kit.guest import Recipe


@pytest.fixture(scope="session", autouse=True)
def _able() -> None:
    need(is_root(), "root", "run as root: engines and debootstrap want it")
    need_programs("qemu-system-x86_64", "qemu-img", "mke2fs", "ssh", "ssh-keygen", "debootstrap")


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A private Docker engine, which guests reach through `engine_address`."""
    need_programs("dockerd", "containerd", "docker", "runc")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    with Engine(port=port) as engine:
        load_base(engine)
        yield engine


@pytest.fixture(scope="session")
def engine_address(engine: Engine) -> str:
    """The engine's address as a guest has to name it: slirp calls this machine 10.0.2.2."""
    return f"tcp://10.0.2.2:{engine.port}"


@pytest.fixture(scope="session")
def small_build(engine: Engine) -> dict[str, Any]:
    """What `provision build` says about the small driver on OLD_KERNEL: built in seconds."""
    target = (SMALL_DRIVER, "--kernel", OLD_KERNEL, "--distro", DISTRO)
    return Provision(engine.host).build(*target)


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Recipe], Path]:
    """The product for guests of a recipe, packed once each."""
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    return cache(lambda recipe: pack_product(recipe, tmp_path_factory.mktemp("product") / "new"))


@pytest.fixture(scope="session")
def bookworm_product(product: Callable[[Recipe], Path]) -> Path:
    """The product for a Debian 12 guest."""
    return product(DEBIAN_12)


@pytest.fixture(scope="session")
def duo_drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A catalogue with the driver `duo`, whose source is served for build containers."""
    with duo_catalogue(tmp_path_factory.mktemp("duo")) as folder:
        yield folder
