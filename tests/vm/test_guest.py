"""The guests themselves: what every other test here relies on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kit.fileserver import served
from kit.guest import DEBIAN_12, IMAGE, guest_of
from kit.hosts import OLD_KERNEL
from kit.process import CommandFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.guest import Guest

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(6)]

# Connects to what answers at the other side of the world network: this machine's ports.
_REACH_HOST = "python3 -c 'import socket; socket.create_connection((\"10.0.2.2\", {}), timeout=5)'"


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with guest_of(DEBIAN_12) as guest:
        yield guest


def test_it_runs_a_packaged_kernel_and_says_how_commands_ended(guest: Guest) -> None:
    assert guest.kernel() == OLD_KERNEL
    done = guest("echo out; echo err >&2; exit 7", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    with pytest.raises(CommandFailedError, match="no such thing"):
        guest("echo no such thing; false")
    assert guest("cat", stdin="given\n").stdout == "given\n"


def test_files_go_in_and_come_out(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("content")
    guest.put(tmp_path / "folder", "/root/folder")
    guest.write("/root/folder/deep/other", "text")
    guest.get("/root/folder", tmp_path / "back")
    assert (tmp_path / "back/file").read_text() == "content"
    assert (tmp_path / "back/deep/other").read_text() == "text"


def test_it_has_engines_with_an_image(guest: Guest) -> None:
    for program in ("docker", "podman"):
        printed = guest(f"{program} run --rm --network none {IMAGE} echo hello").stdout
        assert printed == "hello\n"


def test_its_network_can_be_switched_off_and_on(guest: Guest, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        reach = _REACH_HOST.format(url.rpartition(":")[2])
        guest(reach)
        guest.set_network(on=False)
        assert guest(reach, check=False).returncode != 0
        guest.set_network(on=True)
        guest(f"for try in 1 2 3 4 5 6; do {reach} && exit 0; sleep 1; done; exit 1")


def test_a_reboot_is_another_boot_of_the_same_disk(guest: Guest) -> None:
    before = guest.boot_id()
    guest("echo kept >/root/kept; echo lost >/run/lost")
    guest.reboot()
    assert guest.boot_id() != before
    assert guest("cat /root/kept; ls /run/lost", check=False).stdout == "kept\n"


def test_a_power_cut_keeps_what_was_flushed(guest: Guest) -> None:
    guest("echo flushed >/root/flushed; sync /root/flushed /root")
    guest.kill()
    guest.start()
    assert guest("cat /root/flushed").stdout == "flushed\n"


def test_each_guest_has_a_disk_of_its_own(guest: Guest) -> None:
    guest("touch /root/mine")
    with guest_of(DEBIAN_12) as other:
        assert other("ls /root/mine", check=False).returncode != 0
        pid = other.machine.process.pid
        folder = other.folder
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
