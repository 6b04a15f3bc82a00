"""`ansible-playbook site.yml` on a real kernel: from a bare host to one that a new version reboots.

The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.guest import DEBIAN_12, IMAGE, Guest, guest_of
from kit.hosts import SMALL_DRIVER
from kit.playbooks import SITE, Ansible, Played
from kit.probe import need
from kit.product import DECORATOR
from kit.two_part_driver import DUO, DUO_FLAG
from vm.managed import OPEN_DEVICE, RUN, ManagedGuest

pytestmark = [pytest.mark.nightly, pytest.mark.stages, pytest.mark.minutes(7)]

_OLD = "module 1.0 library 1.0"
_NEW = "module 2.0 library 2.0"
_PROGRAM = "/opt/provision/bin/provision"
_CATALOGUE = "/srv/drivers"
# What other tests want to find in a guest.
_UNUSUAL = "/opt/provision /etc/docker/daemon.json /etc/containers/containers.conf.d/kit.conf"
_HOLD = "nohup sleep 10000 </dev/duo >/dev/null 2>&1 &"


@dataclass
class Scenario:
    """A guest, and how the second run of the playbook on it ended."""

    host: ManagedGuest
    ansible: Ansible
    again: Played

    @property
    def guest(self) -> Guest:
        """The guest itself."""
        return self.host.guest

    def config(self, duo: str) -> dict[str, Any]:
        """What it should have: two drivers, one of them in a given version."""
        return wanted(self.host.engine, duo)


def wanted(engine: str, duo: str) -> dict[str, Any]:
    """What a guest should have: two drivers, built elsewhere."""
    return {
        # Build containers have no bridge.
        "engine": {"host": engine, "network": "host"},
        "catalogue": [_CATALOGUE],
        "drivers": {SMALL_DRIVER: {}, DUO: {"version": duo}},
    }


@pytest.fixture(scope="module")
def scenario(
    engine_address: str, duo_drivers: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scenario]:
    """A Debian that no one has prepared, up to where it has everything."""
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    folder = tmp_path_factory.mktemp("site")
    variables = {
        "provision_driver_source": str(wheel),
        "provision_driver_cache": str(folder / "bundles"),
        "provision_driver_config": wanted(engine_address, "1.0"),
        "provision_driver_reboot_ok": True,
    }
    with guest_of(DEBIAN_12) as guest:
        guest(f"rm -r {_UNUSUAL}; systemctl try-reload-or-restart docker")
        host = ManagedGuest(guest, engine_address)
        host.put_catalogue(duo_drivers)
        ansible = Ansible(folder, [guest], variables)
        ansible.play(SITE)
        yield Scenario(host, ansible, ansible.play(SITE))


def test_drivers_are_built_loaded_and_in_containers(scenario: Scenario) -> None:
    assert scenario.host.duo() == _OLD
    assert scenario.guest(OPEN_DEVICE).stdout == "opened\n"
    assert scenario.guest(f"{RUN} -e {DUO_FLAG}=all {IMAGE} duo-version").stdout.strip() == _OLD
    without = scenario.guest(f"{RUN} {IMAGE} test -e /dev/video0", check=False)
    assert without.returncode == 1, without.output


def test_the_second_run_changes_nothing(scenario: Scenario) -> None:
    assert scenario.again.changed_tasks() == []
    assert scenario.again.recap["guest"]["changed"] == 0


def test_a_version_that_waits_for_a_reboot_gets_one_where_that_is_allowed(
    scenario: Scenario,
) -> None:
    boot = scenario.guest.boot_id()
    scenario.guest(_HOLD)
    with scenario.guest.restarting():
        played = scenario.ansible.play(SITE, provision_driver_config=scenario.config("2.0"))
    assert "Ensure the host was rebooted" in played.changed_tasks()
    assert scenario.guest.boot_id() != boot
    assert scenario.host.duo() == _NEW


def test_after_the_reboot_everything_is_there(scenario: Scenario) -> None:
    status = json.loads(scenario.guest(f"{_PROGRAM} status --json").stdout)
    assert {driver["name"]: driver["state"] for driver in status["drivers"]} == {
        SMALL_DRIVER: "ready",
        DUO: "ready",
    }
    assert scenario.guest(OPEN_DEVICE).stdout == "opened\n"
    log = scenario.guest("journalctl -b --no-pager -u provision-boot").stdout
    assert SMALL_DRIVER in log, log
