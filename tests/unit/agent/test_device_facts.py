"""Facts about devices never fail what the agent does, and what is missing is in its status."""

from __future__ import annotations

from kit.host_tree import DRIVER
from provision.host.devices import Facts, write_facts
from unit.agent.host import Host


def test_what_is_missing_of_them_is_in_the_status(host: Host) -> None:
    host.apply()
    assert host.apply().status.drivers[0].notes == ()
    write_facts(host.root, DRIVER, Facts(devices=(), problems=("GPU 1: GPU is lost",)))
    status = host.apply().status
    assert status.drivers[0].notes == ("GPU 1: GPU is lost",)
    assert (status.state, status.exit_code) == ("ready", 0)
