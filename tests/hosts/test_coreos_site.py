"""All of site.yml on hosts laid out as Fedora CoreOS and Flatcar, up to loading a module.

They have no Python, no package manager, and a /usr that is read-only. The tests are steps of one
scenario, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hosts.conftest import ENGINE, podman_files
from hosts.ssh_hosts import DEBIAN_12, KERNEL, SshHost
from kit.cache import REPOSITORY
from kit.engine import Engine
from kit.hosts import DISTRO, NEW_KERNEL, SMALL_DRIVER
from kit.playbooks import REMOVE, SITE, Ansible, Played

# The agent's image is made. With each change, tests/hosts/test_decisions.py has the paths.
pytestmark = [pytest.mark.nightly, pytest.mark.minutes(4)]

_PROGRAM = "/opt/provision/bin/provision"
_GATE = "/oem/bin/oem-postinst"
_FOREIGN = (
    "/opt /usr/bin/python3* /usr/lib/python3* /usr/share/python3*"
    " /etc/apt /var/lib/apt /var/lib/dpkg /usr/bin/apt* /usr/bin/dpkg*"
)
_READ_ONLY = "mount --bind /usr /usr; mount -o remount,bind,ro /usr"
_LAYOUTS = {
    "fedora_41_coreos": "mkdir -p /var/opt; ln -s var/opt /opt; touch /run/ostree-booted",
    "flatcar_3227.2.4": "mkdir /opt",
}
# Not ours, and written by whatever runs.
_NOISE = ("/var/lib/systemd", "/etc/ld.so.cache", "/var/lib/containers")


@dataclass
class Scenario:
    """A host, and how runs of the playbook on it ended."""

    distro: str
    machine: SshHost
    ansible: Ansible
    before: dict[str, str]
    converged: Played
    again: Played

    def links(self) -> set[str]:
        """The kernels that the driver has an artifact for."""
        return set(self.machine.sh(f"ls /var/lib/provision/{SMALL_DRIVER}/kernels").split())


def _files(machine: SshHost) -> dict[str, str]:
    found = machine.snapshot("/etc", "/opt/", "/var/lib", "/usr/bin", "/oem", "/run/systemd/system")
    return {path: what for path, what in found.items() if not path.startswith(_NOISE)}


@pytest.fixture(
    scope="module",
    # Flatcar's has the gate in addition.
    params=["fedora_41_coreos", "flatcar_3227.2.4"],
)
def scenario(
    request: pytest.FixtureRequest,
    engine: Engine,
    config: dict[str, Any],
    settings: dict[str, Any],
    agent: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scenario]:
    """A host of each kind, up to where it has everything."""
    distro: str = request.param
    variables = {
        **settings,
        "provision_host_agent_image": agent,
        "provision_driver_config": {
            **config,
            "kernel_distro": DISTRO,
            "policy": {"hold_kernels": True},
            "drivers": {SMALL_DRIVER: {}},
        },
        # Its module can't be loaded in a container.
        "provision_driver_require": "prepared",
    }
    with SshHost(DEBIAN_12, binds={engine.folder: ENGINE}) as machine:
        os_release = REPOSITORY / "tests/data/os-release" / distro
        machine.write("/usr/lib/os-release", os_release.read_text())
        for path, text in podman_files(agent).items():
            machine.write(path, text)
        # 'configure --remove' leaves an empty document of a file that it made.
        machine.write("/etc/docker/daemon.json", "{}\n")
        machine.sh(f"rm -rf {_FOREIGN}; mkdir -p /oem; {_LAYOUTS[distro]}; {_READ_ONLY}")
        before = _files(machine)
        ansible = Ansible(tmp_path_factory.mktemp("site"), [machine], variables)
        converged = ansible.play(SITE)
        yield Scenario(distro, machine, ansible, before, converged, ansible.play(SITE))


def test_the_driver_is_built_by_our_own_python(scenario: Scenario) -> None:
    assert "Ensure provision's own Python is installed" in scenario.converged.changed_tasks()
    assert scenario.machine.sh("command -v python3 || true") == ""
    assert scenario.links() == {KERNEL}
    facts = json.loads(scenario.machine.sh(f"{_PROGRAM} facts --json"))
    assert facts["distro"]["id"] == scenario.distro.partition("_")[0]
    assert facts["immutable"]


def test_the_hook_lies_where_it_can_be_written(scenario: Scenario) -> None:
    checked = scenario.machine.sh(
        "/opt/provision/bin/oci-decorator check --env OCI_V4L2LOOPBACK=all"
    )
    assert "v4l2loopback" in checked
    hooks = scenario.machine.sh("ls /etc/containers/oci/hooks.d").split()
    assert "10-oci-decorator-precreate.json" in hooks


def test_the_second_run_changes_nothing(scenario: Scenario) -> None:
    assert scenario.again.changed_tasks() == []
    assert scenario.again.recap["host"]["changed"] == 0


def test_only_updates_of_flatcar_pass_a_gate(scenario: Scenario) -> None:
    is_flatcar = scenario.distro.startswith("flatcar")
    there = scenario.machine("test", "-x", _GATE, check=False).returncode == 0
    assert there == is_flatcar


def test_the_gate_lets_an_update_pass_whose_modules_were_built(scenario: Scenario) -> None:
    if not scenario.distro.startswith("flatcar"):
        pytest.skip("Fedora CoreOS has no such gate")
    scenario.machine.sh(f"mkdir -p /run/new/lib/modules/{NEW_KERNEL}")
    done = scenario.machine(_GATE, "B", "/run/new", check=False)
    assert done.returncode == 0, done.output
    assert scenario.links() == {KERNEL, NEW_KERNEL}


def test_the_gate_holds_an_update_whose_modules_can_not_be_built(scenario: Scenario) -> None:
    if not scenario.distro.startswith("flatcar"):
        pytest.skip("Fedora CoreOS has no such gate")
    scenario.machine.sh("mkdir -p /run/newer/lib/modules/6.1.999-flatcar")
    done = scenario.machine(_GATE, "A", "/run/newer", check=False)
    assert done.returncode == 3, done.output
    assert "6.1.999-flatcar" in done.output
    # And no one misses updates for a program that is gone.
    scenario.machine.sh(f"mv {_PROGRAM} {_PROGRAM}.gone")
    assert scenario.machine(_GATE, "A", "/run/newer", check=False).returncode == 0
    scenario.machine.sh(f"mv {_PROGRAM}.gone {_PROGRAM}")


def test_everything_can_be_taken_back(scenario: Scenario) -> None:
    scenario.ansible.play(REMOVE)
    assert _files(scenario.machine) == scenario.before
    assert scenario.machine.sh("ls -A /opt/") == ""
    assert scenario.ansible.play(REMOVE).recap["host"]["changed"] == 0
