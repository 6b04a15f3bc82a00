"""What other tests here rely on without seeing it: a cut of power, a network that is off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.fileserver import served
from kit.guest import DEBIAN_12, Guest, guest_of

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(4)]

# Connects to what answers at the other side of the world network: this machine's ports.
_REACH_HOST = "python3 -c 'import socket; socket.create_connection((\"10.0.2.2\", {}), timeout=5)'"


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with guest_of(DEBIAN_12) as guest:
        yield guest


def test_its_network_can_be_switched_off_and_on(guest: Guest, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        reach = _REACH_HOST.format(url.rpartition(":")[2])
        guest(reach)
        guest.set_network(on=False)
        assert guest(reach, check=False).returncode != 0
        guest.set_network(on=True)
        guest(f"for try in 1 2 3 4 5 6; do {reach} && exit 0; sleep 1; done; exit 1")


def test_a_power_cut_keeps_what_was_flushed_and_nothing_else(guest: Guest) -> None:
    guest("echo flushed >/root/flushed; sync /root/flushed /root; echo lost >/root/lost")
    guest.kill()
    guest.start()
    assert guest("cat /root/flushed").stdout == "flushed\n"
    assert guest("cat /root/lost", check=False).stdout == ""


def test_its_disk_and_its_machine_end_with_it(guest: Guest) -> None:
    guest("touch /root/mine")
    with guest_of(DEBIAN_12) as other:
        assert other("ls /root/mine", check=False).returncode != 0
        pid = other.machine.process.pid
        folder = other.folder
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
