"""Over an air gap, from end to end: the commands of docs/how-to/air-gap.md, in its order."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hosts.machines import DEBIAN_12, KERNEL, Machine
from kit.cache import REPOSITORY
from kit.hosts import DISTRO, SMALL_DRIVER
from kit.outer import PIN, outer_side
from kit.playbooks import SITE, Ansible
from kit.probe import need, need_programs
from kit.process import run
from kit.product import DECORATOR
from kit.systemd import has_device_cgroups

if TYPE_CHECKING:
    from pathlib import Path

_PROVISION = "/opt/provision/bin/provision"
_MEDIUM = "/media/bundle"


def _bundle(folder: Path) -> Path:
    """What is made outside; registry and network are out of reach after that."""
    wheels = folder / "wheels"
    pinned = ("--require-hashes", "--no-deps", "-r", REPOSITORY / "constraints.txt")
    run([sys.executable, "-m", "pip", "download", "--quiet", *pinned, "--dest", wheels])
    with outer_side(folder) as outer:
        what = ("--kernel", KERNEL, "--distro", DISTRO)
        brought = ("--wheels", wheels, "--program", DECORATOR)
        return outer.bundle(folder / "bundle", *what, *brought)


# With each change, engine/test_air_gap.py carries artifacts over a gap.
@pytest.mark.nightly
def test_a_host_without_a_network_gets_all_from_the_bundle(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    need_programs("docker-registry", "podman", "ssh")
    need(has_device_cgroups(), "device cgroups of version 1", "systemd in a container wants them")
    bundle = _bundle(tmp_path)
    public = (tmp_path / "fleet.pub").read_text()
    with Machine(DEBIAN_12, binds={bundle: _MEDIUM}, isolated=True) as machine:
        # It has an interface of its own, which is not the way to anywhere.
        assert machine.sh("tail -n +2 /proc/net/route") == ""
        assert machine.sh("ls /sys/class/net").split() == ["lo"]
        machine.write("/etc/provision/trust.d/fleet.pub", public)
        variables = {
            "provision_host_engine": "none",
            "provision_driver_source": settings["provision_driver_source"],
            "provision_driver_cache": str(tmp_path / "bundles"),
            "provision_driver_bundle": str(bundle),
            "provision_driver_config": {
                "drivers": {SMALL_DRIVER: {}},
                "trust": {"keys": "/etc/provision/trust.d"},
                "policy": {"build": "never"},
            },
            "provision_driver_require": "prepared",
            "provision_hook_program": str(bundle / "bin/oci-decorator"),
        }
        ansible = Ansible(tmp_path, [machine], variables)
        played = ansible.play(SITE, "-v")
        assert "(from: registry)" in played.output
        assert _digest(machine) == PIN.short_digest
        assert ansible.play(SITE).changed_tasks() == []
        _loaded_by_hand(machine)
        _refused(machine)


def _loaded_by_hand(machine: Machine) -> None:
    """What a person does on one host."""
    shown = json.loads(machine(_PROVISION, "bundle", "show", _MEDIUM, "--check", "--json").stdout)
    assert shown["signed_by"] == "fleet.pub"
    words = (_PROVISION, "bundle", "load", _MEDIUM, "--store", "--json")
    done = json.loads(machine(*words).stdout)
    # It is there by now.
    assert (len(done["entries"]), done["changed"]) == (1, False)


def _refused(machine: Machine) -> None:
    """A host that has another key than the medium's takes nothing of it."""
    machine.sh(
        "cd /etc/provision/trust.d; rm fleet.pub;"
        f" {_PROVISION} key generate --no-password --output other; rm other.key"
    )
    done = machine(_PROVISION, "bundle", "load", _MEDIUM, "--store", "--json", check=False)
    assert done.returncode == 1
    assert "no key that this host trusts" in json.loads(done.stdout)["error"]["message"]


def _digest(machine: Machine) -> str:
    """The artifact that a host has for its kernel, by its short digest."""
    status = json.loads(machine(_PROVISION, "status", "--json").stdout)
    ((slot,),) = (driver["kernels"] for driver in status["drivers"])
    return str(slot["digest"])
