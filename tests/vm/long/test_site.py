"""`ansible-playbook site.yml` on a real kernel: from a bare host to one that a new version reboots.

The tests are steps of one story, in their order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from kit.duo import DUO, DUO_FLAG
from kit.guest import DEBIAN_12, IMAGE, guest_of
from kit.hosts import NEW_KERNEL, OLD_KERNEL, SMALL_DRIVER
from kit.playbooks import SITE, Ansible, Played
from kit.probe import need
from kit.product import DECORATOR, make_wheel
from vm.keeping import OPEN_DEVICE, RUN, Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.guest import Guest

_OLD = "module 1.0 library 1.0"
_NEW = "module 2.0 library 2.0"
_PROGRAM = "/opt/provision/bin/provision"
_CATALOGUE = "/srv/drivers"
_APT = "DEBIAN_FRONTEND=noninteractive apt-get -qy"
_APT_WITHIN_S = 1500
# What other tests want to find in a guest.
_UNUSUAL = "/opt/provision /etc/docker/daemon.json /etc/containers/containers.conf.d/kit.conf"
_HOLD = "nohup sleep 10000 </dev/duo >/dev/null 2>&1 &"


@dataclass
class Story:
    """A guest, and how the second run of the playbook on it ended."""

    keeper: Keeper
    ansible: Ansible
    again: Played

    @property
    def guest(self) -> Guest:
        """The guest itself."""
        return self.keeper.guest

    def config(self, duo: str) -> dict[str, Any]:
        """What it should have: two drivers, one of them in a given version."""
        return wanted(self.keeper.engine, duo)

    def artifact(self, driver: str, release: str) -> str:
        """The artifact for a kernel; empty: there is none."""
        link = f"/var/lib/provision/{driver}/kernels/{release}"
        return self.guest(f"readlink {link}", check=False).stdout.strip()


def wanted(engine: str, duo: str) -> dict[str, Any]:
    """What a guest should have: two drivers, built elsewhere."""
    return {
        # Build containers have no bridge.
        "engine": {"host": engine, "network": "host"},
        "catalogue": [_CATALOGUE],
        "drivers": {SMALL_DRIVER: {}, DUO: {"version": duo}},
    }


@pytest.fixture(scope="module")
def story(
    engine_address: str, duo_drivers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    """A Debian that nobody has prepared, up to where it has everything."""
    need(DECORATOR.exists(), str(DECORATOR), "make build")
    folder = tmp_path_factory.mktemp("site")
    variables = {
        "provision_driver_source": str(make_wheel(folder)),
        "provision_driver_cache": str(folder / "bundles"),
        "provision_driver_config": wanted(engine_address, "1.0"),
        "provision_driver_reboot_ok": True,
    }
    with guest_of(DEBIAN_12) as guest:
        guest(f"rm -r {_UNUSUAL}; systemctl try-reload-or-restart docker")
        keeper = Keeper(guest, engine_address)
        keeper.put_catalogue(duo_drivers)
        ansible = Ansible(folder, [guest], variables)
        ansible.play(SITE)
        keeper.remember_archive()
        yield Story(keeper, ansible, ansible.play(SITE))


def test_drivers_are_built_loaded_and_in_containers(story: Story) -> None:
    assert story.guest.kernel() == OLD_KERNEL
    assert story.keeper.duo() == _OLD
    assert story.guest(OPEN_DEVICE).stdout == "opened\n"
    assert story.guest(f"{RUN} -e {DUO_FLAG}=all {IMAGE} duo-version").stdout.strip() == _OLD
    without = story.guest(f"{RUN} {IMAGE} test -e /dev/video0", check=False)
    assert without.returncode == 1, without.output


def test_the_second_run_changes_nothing(story: Story) -> None:
    assert story.again.changed_tasks() == []
    assert story.again.recap["guest"]["changed"] == 0


def test_a_new_kernel_has_its_drivers_before_the_reboot(story: Story) -> None:
    packages = f"linux-image-{NEW_KERNEL}"
    story.guest(f"{_APT} update && {_APT} install {packages}", timeout_s=_APT_WITHIN_S)
    story.keeper.services_done()
    log = story.guest("journalctl -b --no-pager -u 'provision-*'").stdout
    for driver in (SMALL_DRIVER, DUO):
        assert story.artifact(driver, NEW_KERNEL), log
        assert story.artifact(driver, OLD_KERNEL) != story.artifact(driver, NEW_KERNEL)
    assert story.guest.kernel() == OLD_KERNEL
    assert story.keeper.duo() == _OLD


def test_a_version_that_waits_for_a_reboot_gets_one_where_that_is_allowed(story: Story) -> None:
    boot = story.guest.boot_id()
    story.guest(_HOLD)
    with story.guest.restarting():
        played = story.ansible.play(SITE, provision_driver_config=story.config("2.0"))
    assert "Reboot" in played.changed_tasks()
    assert story.guest.boot_id() != boot
    assert story.guest.kernel() == NEW_KERNEL
    assert story.keeper.duo() == _NEW


def test_after_the_reboot_everything_is_there(story: Story) -> None:
    status = json.loads(story.guest(f"{_PROGRAM} status --json").stdout)
    assert {driver["name"]: driver["state"] for driver in status["drivers"]} == {
        SMALL_DRIVER: "ready",
        DUO: "ready",
    }
    assert story.guest(OPEN_DEVICE).stdout == "opened\n"
    log = story.guest("journalctl -b --no-pager -u provision-boot").stdout
    assert SMALL_DRIVER in log, log
