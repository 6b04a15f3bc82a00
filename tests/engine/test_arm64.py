"""Drivers for arm64 hosts: built on this machine by an emulator, used by its containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.arm64 import MACHINE, run_foreign_programs
from kit.engine import Engine
from kit.hosts import DISTRO, OLD_KERNEL, SMALL_DRIVER
from kit.process import run
from kit.product import Provision, base_archive
from kit.toolchains import load_toolchains

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(12)]

# Debian builds each kernel for all architectures.
KERNEL = OLD_KERNEL.replace("amd64", "arm64")
_TARGET = (SMALL_DRIVER, "--kernel", KERNEL, "--distro", DISTRO, "--arch", "arm64")


@pytest.fixture(scope="module")
def build(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `provision build --arch arm64` says, and where the Pin is."""
    run_foreign_programs()
    engine.docker("load", "--quiet", "--input", base_archive(engine, DISTRO, machine=MACHINE))
    load_toolchains(engine, MACHINE)
    provision = Provision(engine.host)
    pin = tmp_path_factory.mktemp("arm64") / "pin.json"
    provision("resolve", *_TARGET, "--output", pin)
    return provision.build("--pin", pin) | {"pin": pin}


def test_the_image_and_its_modules_are_of_that_architecture(
    engine: Engine, build: dict[str, Any], tmp_path: Path
) -> None:
    said = engine.docker("image", "inspect", "--format={{.Architecture}}", build["image"])
    assert said.stdout == "arm64\n"
    name = engine.docker("create", "--platform=linux/arm64", build["image"], "none").stdout.strip()
    engine.docker("cp", f"{name}:/opt/.", tmp_path)
    engine.docker("rm", name)
    (module,) = (tmp_path / "lib/modules" / KERNEL).rglob("v4l2loopback.ko*")
    said = run(["modinfo", "-F", "vermagic", module])
    assert said.stdout.split()[0] == KERNEL
    assert "aarch64" in said.stdout


def test_the_pin_is_another_than_for_this_machine(
    provision: Provision, build: dict[str, Any], small_build: dict[str, Any]
) -> None:
    assert build["digest"] != small_build["digest"]
    pin = provision.json("resolve", *_TARGET)
    assert pin["digest"] == build["digest"]
    assert pin["kernel"] == {"release": KERNEL, "architecture": MACHINE}


def test_a_host_of_that_architecture_installs_it(
    provision: Provision, build: dict[str, Any]
) -> None:
    provision("verify", build["image"])
