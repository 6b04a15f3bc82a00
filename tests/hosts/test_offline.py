"""Hosts for which nothing is compiled: a registry has the driver, or the controller's files do."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

from hosts.conftest import ENGINE
from hosts.machines import DEBIAN_12, KERNEL, Machine
from kit.cache import REPOSITORY
from kit.debian import mirror, security_mirror
from kit.hosts import DISTRO, SMALL_DRIVER
from kit.playbooks import REMOVE, SITE, Ansible
from kit.probe import need_programs
from kit.process import run
from kit.product import Provision
from kit.registry import serving_registry

if TYPE_CHECKING:
    from pathlib import Path

    from kit.engine import Engine

_TARGET = (SMALL_DRIVER, "--kernel", KERNEL, "--distro", DISTRO)
# For a Docker that could do no harm to this machine's network.
_DAEMON_JSON = """\
{
  "bridge": "none", "iptables": false, "ip6tables": false,
  "storage-driver": "vfs",
  "data-root": "/run/docker-data",
  "exec-opts": ["native.cgroupdriver=cgroupfs"]
}
"""


def _digest(machine: Machine) -> str:
    """The artifact that a host has for its kernel, by its short digest."""
    status = json.loads(machine("/opt/provision/bin/provision", "status", "--json").stdout)
    ((slot,),) = (driver["kernels"] for driver in status["drivers"])
    return str(slot["digest"])


def _short(build: dict[str, Any]) -> str:
    return str(build["digest"]).removeprefix("sha256:")[:12]


def test_from_a_registry_nothing_is_built(
    engine: Engine,
    small_build: dict[str, Any],
    config: dict[str, Any],
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    need_programs("docker-registry")
    name = small_build["image"].removeprefix("provision/")
    data = tmp_path / "registry"
    data.mkdir()
    with (
        serving_registry(data) as registry,
        Machine(DEBIAN_12, binds={engine.folder: ENGINE}) as machine,
    ):
        pin = Provision(engine.host).json("resolve", *_TARGET)
        driver, kernel = pin["driver"], pin["kernel"]["release"]
        tag = f"{driver['version']}-{driver['flavour']}-{kernel}.debian12"
        Provision(engine.host).build(*_TARGET, "--push", f"{registry}/drivers/{SMALL_DRIVER}:{tag}")
        engine.docker("image", "rm", *(i for i in engine.images() if i.endswith((name, tag))))
        # The steps of its build are not to be found either.
        engine.docker("builder", "prune", "--all", "--force")
        before = engine.layers()
        wanted = {
            **config,
            "drivers": {SMALL_DRIVER: {}},
            "registry": {"address": f"{registry}/drivers"},
            "trust": {"insecure": True},
        }
        variables = {
            **settings,
            "provision_driver_config": wanted,
            "provision_driver_require": "prepared",
        }
        played = Ansible(tmp_path, [machine], variables).play(SITE, "-v")
        assert "(from: registry)" in played.output
        assert _digest(machine) == _short(small_build)
        # The host pulls by itself: its engine has no image more, and no step of a build.
        assert engine.layers() <= before


def test_a_host_that_never_builds_gets_the_keys_and_needs_no_engine(
    engine: Engine,
    small_build: dict[str, Any],
    config: dict[str, Any],
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    need_programs("docker-registry")
    data, keys = tmp_path / "registry", tmp_path / "keys"
    data.mkdir()
    keys.mkdir()
    provision = Provision(engine.host)
    for name in ("fleet", "former"):
        provision("key", "generate", "--output", keys / name, "--no-password")
    with serving_registry(data) as registry, Machine(DEBIAN_12) as machine:
        pin = provision.json("resolve", *_TARGET)
        driver, kernel = pin["driver"], pin["kernel"]["release"]
        tag = f"{driver['version']}-{driver['flavour']}-{kernel}.debian12"
        name = f"{registry}/drivers/{SMALL_DRIVER}:{tag}"
        signing = ("--sign", "--key", keys / "fleet.key")
        provision("push", small_build["image"], name, *signing)
        variables = {
            **settings,
            "provision_driver_trust_keys": [str(keys / "fleet.pub"), str(keys / "former.pub")],
            "provision_driver_config": {
                **{k: v for k, v in config.items() if k != "engine"},
                "drivers": {SMALL_DRIVER: {}},
                "registry": {"address": f"{registry}/drivers"},
                "policy": {"build": "never"},
            },
            "provision_driver_require": "prepared",
        }
        played = Ansible(tmp_path, [machine], variables).play(SITE, "-v")
        assert "(from: registry)" in played.output
        assert _digest(machine) == _short(small_build)
        folder = "/etc/provision/trust.d"
        assert machine.sh(f"ls {folder}").split() == ["fleet.pub", "former.pub"]
        assert f'keys = "{folder}"' in machine.read("/etc/provision/provision.toml")
        # One that is not in the list any more counts nowhere, anyone who put it there.
        machine.sh(f"cp {folder}/former.pub {folder}/another.pem")
        variables["provision_driver_trust_keys"] = [str(keys / "fleet.pub")]
        played = Ansible(tmp_path, [machine], variables).play(SITE)
        assert machine.sh(f"ls {folder}").split() == ["fleet.pub"]
        Ansible(tmp_path, [machine], variables).play(REMOVE)
        assert "trust.d" not in machine.sh("ls /etc/provision || true")


def test_from_only_the_controllers_files(
    engine: Engine, small_build: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    archive = tmp_path / "driver.tar"
    shutil.copy(small_build["archive"], archive)
    wheelhouse = tmp_path / "wheels"
    # As the page for users says.
    pinned: list[str | Path] = [
        "--require-hashes",
        "--no-deps",
        "-r",
        REPOSITORY / "constraints.txt",
    ]
    run([sys.executable, "-m", "pip", "download", "--quiet", *pinned, "--dest", wheelhouse])
    # A host without the base image can't know which one the driver was built on.
    base = Provision(engine.host).json("resolve", *_TARGET)["base"]
    debian = {
        "archive": {"mirror": mirror(), "security_mirror": security_mirror()},
        "base_images": {"12": f"{base['image']}@{base['digest']}"},
    }
    with Machine(DEBIAN_12) as machine:
        machine.write("/etc/docker/daemon.json", _DAEMON_JSON)
        machine("systemctl", "start", "docker")
        variables = {
            "provision_driver_source": settings["provision_driver_source"],
            "provision_driver_cache": str(tmp_path / "bundles"),
            "provision_driver_wheelhouse": str(wheelhouse),
            "provision_driver_images": [str(archive)],
            "provision_driver_config": {
                "drivers": {SMALL_DRIVER: {}},
                "distros": {"debian": debian},
            },
            "provision_driver_require": "prepared",
        }
        ansible = Ansible(tmp_path, [machine], variables)
        ansible.play(SITE)
        assert _digest(machine) == _short(small_build)
        # There was nothing to build with, and nothing was built.
        listed = machine("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
        assert listed == [small_build["image"]]
        assert ansible.play(SITE).changed_tasks() == []
        _removed_with_its_images(machine, ansible)


def _removed_with_its_images(machine: Machine, ansible: Ansible) -> None:
    """Artifact images go on request, and no others."""
    machine(
        "sh", "-euc", "tar -C /etc/provision -c . | docker import --change 'LABEL a=b' - mine:1"
    )
    asked = ("--extra-vars", '{"provision_driver_remove_images": true}')
    checked = ansible.play(REMOVE, "--check", *asked)
    assert "Ensure no artifact image is in the engine" in checked.changed_tasks()
    assert len(machine("docker", "images", "--quiet").stdout.split()) == 2
    played = ansible.play(REMOVE, *asked)
    assert "Ensure no artifact image is in the engine" in played.changed_tasks()
    listed = machine("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
    assert listed == ["mine:1"]
