"""Hosts for which nothing is compiled: a registry, a folder, or the controller's files have it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hosts.ssh_hosts import DEBIAN_12, KERNEL, SshHost
from kit.cache import REPOSITORY
from kit.debian import mirror, security_mirror
from kit.engine import Engine
from kit.hosts import DISTRO, SMALL_DRIVER
from kit.playbooks import REMOVE, SITE, Ansible
from kit.probe import need_programs
from kit.process import run
from kit.product import DECORATOR, Provision
from kit.signed_registry import NO_ENGINE, PIN, TAG, signed_registry

_PROVISION = "/opt/provision/bin/provision"
_TRUST = "/etc/provision/trust.d"
_MEDIUM = "/media/drivers"
# For a Docker that could do no harm to this machine's network.
_DAEMON_JSON = """\
{
  "bridge": "none", "iptables": false, "ip6tables": false,
  "storage-driver": "vfs",
  "data-root": "/run/docker-data",
  "exec-opts": ["native.cgroupdriver=cgroupfs"]
}
"""


def _digest(machine: SshHost) -> str:
    """The artifact that a host has for its kernel, by its short digest."""
    status = json.loads(machine(_PROVISION, "status", "--json").stdout)
    ((slot,),) = (driver["kernels"] for driver in status["drivers"])
    return str(slot["digest"])


_REMOVAL = "Ensure drivers, units and provision's files are removed"


def _need() -> None:
    need_programs("docker-registry", "podman", "ssh")


def _never_builds(settings: dict[str, Any]) -> dict[str, Any]:
    """The variables of a host without an engine."""
    return {
        **settings,
        "provision_host_engine": "none",
        "provision_driver_config": {
            "drivers": {SMALL_DRIVER: {}},
            "policy": {"build": "never"},
            "trust": {"keys": _TRUST},
        },
        "provision_driver_require": "prepared",
    }


@pytest.mark.nightly
def test_a_host_without_an_engine_gets_a_signed_driver_from_a_registry(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    _need()
    NO_ENGINE("registry", "key", "--output", tmp_path / "former", "--no-password")
    variables = _never_builds(settings)
    del variables["provision_driver_config"]["trust"]
    former = str(tmp_path / "former.pub")
    with signed_registry(tmp_path) as outer, SshHost(DEBIAN_12) as machine:
        variables["provision_driver_config"]["registry"] = {"address": outer.address}
        # Of a key that signed nothing.
        ansible = Ansible(tmp_path, [machine], variables)
        refused = ansible.play(SITE, check=False, provision_driver_trust_keys=[former])
        assert refused.recap["host"]["failed"] == 1
        keys = [str(outer.public), former]
        played = ansible.play(SITE, "-v", provision_driver_trust_keys=keys)
        assert "(from: registry)" in played.output
        assert _digest(machine) == PIN.short_digest
        assert machine.sh(f"ls {_TRUST}").split() == ["fleet.pub", "former.pub"]
        # One that is not in the list any more is trusted nowhere, anyone who put it there.
        machine.sh(f"cp {_TRUST}/former.pub {_TRUST}/another.pem")
        ansible.play(SITE, provision_driver_trust_keys=keys[:1])
        assert machine.sh(f"ls {_TRUST}").split() == ["fleet.pub"]
        ansible.play(REMOVE, provision_driver_trust_keys=keys[:1])
        assert "trust.d" not in machine.sh("ls /etc/provision || true")


# The commands of docs/how-to/air-gap.md, in its order. With each change, engine/test_air_gap.py
# carries artifacts over a gap.
@pytest.mark.nightly
def test_a_host_without_a_network_gets_all_from_a_folder(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    _need()
    folder = tmp_path / "drivers"
    wheels = folder / "wheels"
    pinned = ("--require-hashes", "--no-deps", "-r", REPOSITORY / "constraints.txt")
    run([sys.executable, "-m", "pip", "download", "--quiet", *pinned, "--dest", wheels])
    # Registry and network are out of reach after that.
    with signed_registry(tmp_path) as outer:
        outer.carry(folder)
    with SshHost(DEBIAN_12, binds={folder: _MEDIUM}, isolated=True) as machine:
        # It has an interface of its own, which is not the way to anywhere.
        assert machine.sh("tail -n +2 /proc/net/route") == ""
        assert machine.sh("ls /sys/class/net").split() == ["lo"]
        machine.write(f"{_TRUST}/fleet.pub", (tmp_path / "fleet.pub").read_text())
        variables = _never_builds(settings) | {
            "provision_driver_cache": str(tmp_path / "bundles"),
            "provision_driver_folder": str(folder),
            "provision_hook_program": str(DECORATOR),
        }
        ansible = Ansible(tmp_path, [machine], variables)
        played = ansible.play(SITE, "-v")
        assert "(from: registry)" in played.output
        assert _digest(machine) == PIN.short_digest
        assert ansible.play(SITE).changed_tasks() == []
        _by_hand(machine)


def _by_hand(machine: SshHost) -> None:
    """What a person does on one host, and what is refused there for a key of someone else."""
    words = (_PROVISION, "install", f"oci:{_MEDIUM}/{SMALL_DRIVER}:{TAG}", "--json")
    # It is there by now.
    assert json.loads(machine(*words).stdout)["changed"] is False
    other = f"{_PROVISION} registry key --no-password --output other"
    machine.sh(f"cd {_TRUST}; rm fleet.pub; {other}; rm other.key")
    assert machine(*words, check=False).returncode == 1


@pytest.mark.nightly
def test_from_only_the_controllers_files(
    engine: Engine, small_build: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    target = (SMALL_DRIVER, "--kernel", KERNEL, "--distro", DISTRO)
    folder = tmp_path / "drivers"
    provision = Provision(engine.host)
    provision("registry", "key", "--no-password", "--output", tmp_path / "fleet")
    signing = ("--sign", "--key", tmp_path / "fleet.key")
    provision("registry", "push", small_build["image"], f"oci:{folder}", *signing)
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
    base = provision.json("resolve", *target)["base"]
    debian = {
        "archive": {"mirror": mirror(), "security_mirror": security_mirror()},
        "base_images": {"12": f"{base['image']}@{base['digest']}"},
    }
    with SshHost(DEBIAN_12) as machine:
        machine.write("/etc/docker/daemon.json", _DAEMON_JSON)
        machine("systemctl", "start", "docker")
        variables = {
            "provision_driver_source": settings["provision_driver_source"],
            "provision_driver_cache": str(tmp_path / "bundles"),
            "provision_driver_wheelhouse": str(wheelhouse),
            "provision_driver_folder": str(folder),
            "provision_driver_trust_keys": [str(tmp_path / "fleet.pub")],
            "provision_driver_config": {
                "drivers": {SMALL_DRIVER: {}},
                "distros": {"debian": debian},
            },
            "provision_driver_require": "prepared",
        }
        ansible = Ansible(tmp_path, [machine], variables)
        ansible.play(SITE)
        assert small_build["digest"].startswith(f"sha256:{_digest(machine)}")
        # There was nothing to build with, and nothing was built.
        listed = machine("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
        assert listed == []
        assert ansible.play(SITE).changed_tasks() == []
        _removed_with_its_images(machine, ansible)


def _removed_with_its_images(machine: SshHost, ansible: Ansible) -> None:
    """Images of builds go on request, and no others."""
    for label, name in (
        ("a=b", "mine:1"),
        ("provision.pin.digest=sha256:1", "provision/x:1"),
        ("provision.toolchain=1 provision.toolchain.kernel=1", "provision/toolchain:1"),
        ("provision.toolchain=1 provision.toolchain.kernel=1", "provision/toolchain:of-others"),
    ):
        made = f"tar -C /etc/provision -c . | docker import --change 'LABEL {label}' - {name}"
        machine("sh", "-euc", made)
    ours = machine.sh("docker image inspect --format '{{.Id}}' provision/toolchain:1").strip()
    machine.sh("install -d -m 700 /var/cache/provision/built")
    machine.write(f"/var/cache/provision/built/{ours}", "provision/toolchain:1")
    asked = ("--extra-vars", '{"provision_driver_remove_images": true}')
    checked = ansible.play(REMOVE, "--check", *asked)
    assert _REMOVAL in checked.changed_tasks()
    assert len(machine("docker", "images", "--quiet").stdout.split()) == 4
    played = ansible.play(REMOVE, *asked)
    assert _REMOVAL in played.changed_tasks()
    listed = machine("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
    assert sorted(listed) == ["mine:1", "provision/toolchain:of-others"]
