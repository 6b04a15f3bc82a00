"""Hosts for which nothing is compiled: a registry has the driver, or the controller's files do."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from hosts.conftest import ENGINE
from hosts.machines import DEBIAN_12, KERNEL, Machine
from kit.cache import REPOSITORY
from kit.debian import mirror, security_mirror
from kit.hosts import DISTRO, SMALL_DRIVER
from kit.playbooks import REMOVE, SITE, Ansible, Played
from kit.probe import need_programs
from kit.process import run
from kit.product import Provision
from kit.registry import serving_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.engine import Engine

pytestmark = pytest.mark.minutes(2)

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


@dataclass(frozen=True, slots=True)
class _Pulled:
    """Two hosts after a run of the playbook: what they have came from a registry.

    Attributes:
        pulls: One with an engine, which would build what the registry lacked.
        never: One without, which never builds and trusts two keys.
        ansible: Their controller.
        played: The run.
        built: What was pushed.
        layers: What the engine had before the run.
        keys: The folder of the keys.
    """

    pulls: Machine
    never: Machine
    ansible: Ansible
    played: Played
    built: dict[str, Any]
    layers: set[str]
    keys: Path


@pytest.fixture
def pulled(
    engine: Engine,
    small_build: dict[str, Any],
    config: dict[str, Any],
    settings: dict[str, Any],
    tmp_path: Path,
) -> Iterator[_Pulled]:
    """Both hosts, set up by one run."""
    need_programs("docker-registry")
    data, keys = tmp_path / "registry", tmp_path / "keys"
    data.mkdir()
    keys.mkdir()
    provision = Provision(engine.host)
    for name in ("fleet", "former"):
        provision("key", "generate", "--output", keys / name, "--no-password")
    with serving_registry(data) as registry:
        _push(engine, small_build, registry, keys / "fleet.key")
        common = {"drivers": {SMALL_DRIVER: {}}, "registry": {"address": f"{registry}/drivers"}}
        pulling = {**config, **common, "trust": {"insecure": True}}
        never = {**config, **common, "policy": {"build": "never"}}
        del never["engine"]
        trusted = [str(keys / "fleet.pub"), str(keys / "former.pub")]
        with (
            Machine(
                DEBIAN_12,
                "pulls",
                binds={engine.folder: ENGINE},
                settings={"provision_driver_config": pulling},
            ) as first,
            Machine(
                DEBIAN_12,
                "never",
                settings={"provision_driver_config": never, "provision_driver_trust_keys": trusted},
            ) as second,
        ):
            before = engine.layers()
            variables = {**settings, "provision_driver_require": "prepared"}
            ansible = Ansible(tmp_path, [first, second], variables)
            played = ansible.play(SITE, "-v")
            yield _Pulled(first, second, ansible, played, small_build, before, keys)


def _push(engine: Engine, build: dict[str, Any], registry: str, key: Path) -> None:
    """Have the registry hold a signed driver, of which the engine keeps nothing."""
    provision = Provision(engine.host)
    pin = provision.json("resolve", *_TARGET)
    driver, kernel = pin["driver"], pin["kernel"]["release"]
    tag = f"{driver['version']}-{driver['flavour']}-{kernel}.debian12"
    name = f"{registry}/drivers/{SMALL_DRIVER}:{tag}"
    provision.build(*_TARGET, "--push", name)
    provision("push", build["image"], name, "--sign", "--key", key)
    short = build["image"].removeprefix("provision/")
    engine.docker("image", "rm", *(i for i in engine.images() if i.endswith((short, tag))))
    # The steps of its build are not to be found either.
    engine.docker("builder", "prune", "--all", "--force")


def test_from_a_registry_nothing_is_built_and_a_host_that_never_builds_needs_no_engine(
    pulled: _Pulled, engine: Engine
) -> None:
    assert pulled.played.output.count("(from: registry)") >= len((pulled.pulls, pulled.never))
    for machine in (pulled.pulls, pulled.never):
        assert _digest(machine) == _short(pulled.built)
    # Hosts pull by themselves: the engine has no image more, and no step of a build.
    assert engine.layers() <= pulled.layers

    host, folder = pulled.never, "/etc/provision/trust.d"
    assert host.sh(f"ls {folder}").split() == ["fleet.pub", "former.pub"]
    assert f'keys = "{folder}"' in host.read("/etc/provision/provision.toml")
    # One that is not in the list any more counts nowhere, anyone who put it there.
    host.sh(f"cp {folder}/former.pub {folder}/another.pem")
    only = ("--limit", host.name)
    fleet = {"provision_driver_trust_keys": [str(pulled.keys / "fleet.pub")]}
    pulled.ansible.play(SITE, *only, "--extra-vars", json.dumps(fleet))
    assert host.sh(f"ls {folder}").split() == ["fleet.pub"]
    pulled.ansible.play(REMOVE, *only)
    assert "trust.d" not in host.sh("ls /etc/provision || true")


@pytest.mark.nightly
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
