"""One inventory for hosts with cards of different generations: each gets the driver of its own.

The cards are files where the kernel has them; NVIDIA answers as on a day in November 2026, and the
files of the versions are small ones in its layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hosts.conftest import ENGINE
from hosts.ssh_hosts import DEBIAN_12, KERNEL, SshHost
from kit.engine import Engine
from kit.files import plug_in
from kit.nvidia_day import BLACKWELL, PASCAL, nvidia_day
from kit.playbooks import SITE, Ansible

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(6)]

_KEYS = ("address", "vendor", "device", "device_class", "driver")
_PCI = "sys/bus/pci/devices"
# By name, a host's cards, and the version and flavour that it should get.
_FLEET = {
    "old": ((PASCAL,), "580.178.04", "proprietary"),
    "new": ((BLACKWELL,), "625.22.02", "open"),
    "without": ((), "625.22.02", "open"),
}
_GATHER = [
    {
        "hosts": "all",
        "gather_facts": False,
        "tasks": [
            {"oci_decorator.drivers.provision_facts": {}},
            {
                "ansible.builtin.copy": {
                    "content": "{{ ansible_facts.provision | to_json }}",
                    "dest": "{{ playbook_dir }}/{{ inventory_hostname }}.json",
                    "mode": "0644",
                },
                "delegate_to": "localhost",
                "vars": {"ansible_connection": "local"},
            },
        ],
    }
]


@dataclass(frozen=True, slots=True)
class _Fleet:
    ansible: Ansible
    machines: Mapping[str, SshHost]


@pytest.fixture(scope="module")
def fleet(
    engine: Engine,
    settings: dict[str, Any],
    config: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[_Fleet]:
    """Three hosts that `site.yml` has set up at once."""
    folder = tmp_path_factory.mktemp("fleet")
    with nvidia_day(folder) as day, ExitStack() as stack:
        machines = {}
        for name, (devices, version, _) in _FLEET.items():
            day.publish(version)
            (folder / name / _PCI).mkdir(parents=True)
            plug_in(folder / name, *devices)
            binds = {
                engine.folder: ENGINE,
                day.catalogue: "/srv/drivers",
                folder / name / _PCI: f"/{_PCI}",
            }
            machines[name] = stack.enter_context(SshHost(DEBIAN_12, name, binds))
        wanted = {
            **config,
            "catalogue": ["/srv/drivers"],
            "drivers": {"nvidia": {"version": "production"}},
        }
        # Modules can't be loaded in a container.
        variables = {**settings, "provision_driver_require": "prepared"}
        ansible = Ansible(folder, list(machines.values()), variables)
        played = ansible.play(SITE, provision_driver_config=wanted, check=False)
        failed = [line for line in played.output.splitlines() if line.startswith("fatal:")]
        assert played.code == 0, failed
        yield _Fleet(ansible, machines)


@pytest.mark.parametrize(
    ("name", "version", "flavour"), [(name, *wanted[1:]) for name, wanted in _FLEET.items()]
)
def test_each_host_gets_the_driver_of_its_own_cards(
    fleet: _Fleet, name: str, version: str, flavour: str
) -> None:
    manifest = fleet.machines[name].read("/var/lib/provision/nvidia/current/driver/manifest.json")
    pin = json.loads(manifest)["pin"]
    assert pin["kernel"]["release"] == KERNEL
    assert (pin["driver"]["version"], pin["driver"]["flavour"]) == (version, flavour)


def test_facts_have_the_cards_of_each_host(fleet: _Fleet, tmp_path: Path) -> None:
    playbook = tmp_path / "gather.yml"
    playbook.write_text(yaml.safe_dump(_GATHER))
    fleet.ansible.play(playbook)
    for name, machine in fleet.machines.items():
        found = json.loads((tmp_path / f"{name}.json").read_text())["pci"]
        cards = [(one["vendor"], one["device"]) for one in found]
        assert cards == [("10de", device) for device in _FLEET[name][0]]
        # The command says the same, and more.
        said = json.loads(machine("/opt/provision/bin/provision", "facts", "--json").stdout)["pci"]
        assert [{key: one[key] for key in _KEYS} for one in said] == found
