"""Kernels whose headers no one has, or not yet, and kernels that are removed.

The archive of Debian 12 is what it is for users: of 6.1.0-52 it has the kernel and no headers any
more, those of 6.1.0-50 are in the release, those of 6.1.0-56 only among the security updates. The
tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from kit.duo import DUO
from kit.guest import DEBIAN_12, guest_of
from kit.hosts import OLD_KERNEL
from vm.keeping import Keeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kit.guest import Guest

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(8)]

# Cloud kernels: a fifth of the others' size, for a guest that is emulated.
_DROPPED = "6.1.0-52-cloud-amd64"
_OLDER = "6.1.0-50-cloud-amd64"
_NEWEST = "6.1.0-56-cloud-amd64"
_LOADED = "module 1.0 library 1.0"

_FAILED = 1
_NOT_FOUND = 3
_WITHIN_S = 900
_APT = "DEBIAN_FRONTEND=noninteractive apt-get -qy"
_SOURCES = "/etc/apt/sources.list"
_STORE = f"/var/lib/provision/{DUO}"


@pytest.fixture(scope="module")
def keeper(bookworm_product: Path, engine_address: str, duo_drivers: Path) -> Iterator[Keeper]:
    """A guest that keeps a driver, with the units in place."""
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        keeper = Keeper(guest, engine_address)
        keeper.put_catalogue(duo_drivers)
        keeper.want(duo="1.0")
        keeper.apply()
        guest("provision units")
        # What starts the agent in this scenario are kernels.
        guest("systemctl stop provision-apply.timer")
        yield keeper


def _add_kernel(guest: Guest, release: str) -> None:
    """Write the files of an installed kernel; no one boots it."""
    guest(
        f"touch /boot/vmlinuz-{release} && mkdir /lib/modules/{release}"
        f" && touch /lib/modules/{release}/modules.dep"
    )


def _remove_kernel(guest: Guest, release: str) -> None:
    guest(f"rm -r /boot/vmlinuz-{release} /lib/modules/{release}")


def _await(keeper: Keeper, what: Callable[[], bool]) -> None:
    """Wait until what a kernel's coming or going has started has led to something."""
    deadline = time.monotonic() + _WITHIN_S
    while not what():
        log = keeper.guest("journalctl -b --no-pager -u 'provision-*'").stdout
        assert time.monotonic() < deadline, log
        time.sleep(2)


def _slot(keeper: Keeper, release: str) -> dict[str, Any]:
    return keeper.slots(DUO).get(release, {"state": None})


def _lacks_headers(keeper: Keeper, release: str) -> dict[str, Any]:
    """Wait until the host says so of a kernel; what it says."""
    _await(keeper, lambda: _slot(keeper, release)["state"] == "missing")
    status = keeper.status(DUO)
    assert (status["state"], status["is_ready"]) == ("next-kernel-not-ready", True)
    slot = _slot(keeper, release)
    assert f"No headers are packaged for the kernel {release}" in slot["reason"]
    assert slot["resolution"]
    # What runs is as it was.
    assert keeper.slots(DUO)[OLD_KERNEL]["state"] == "ready"
    assert keeper.duo() == _LOADED
    return slot


def test_a_kernel_that_the_archive_has_dropped_is_named_and_what_to_do(keeper: Keeper) -> None:
    guest = keeper.guest
    _add_kernel(guest, _DROPPED)
    slot = _lacks_headers(keeper, _DROPPED)
    # The way out: a kernel that is packaged.
    assert _OLDER in slot["failure"]["details"]
    assert guest("provision status --check", check=False).returncode == _NOT_FOUND
    assert _DROPPED in guest("provision doctor", check=False).stdout
    _remove_kernel(guest, _DROPPED)


def test_a_kernel_that_is_packaged_is_prepared(keeper: Keeper) -> None:
    _add_kernel(keeper.guest, _OLDER)
    _await(keeper, lambda: _slot(keeper, _OLDER)["state"] == "ready")
    assert keeper.status(DUO)["state"] == "ready"


def test_a_package_whose_headers_are_late_is_named(keeper: Keeper) -> None:
    """The kernel comes by hand, from an archive that this host's sources do not name yet."""
    guest = keeper.guest
    guest(f"{_APT} update && {_APT} --download-only install linux-image-{_NEWEST}")
    guest(f"cp {_SOURCES} /root && sed -i /security/d {_SOURCES}")
    guest("dpkg -i /var/cache/apt/archives/linux-image-*.deb", timeout_s=_WITHIN_S)
    slot = _lacks_headers(keeper, _NEWEST)
    assert "security" not in slot["failure"]["details"]
    # An admin's own look says the same.
    keeper.apply(status=_NOT_FOUND)


def test_it_heals_by_itself_when_they_arrive(keeper: Keeper) -> None:
    guest = keeper.guest
    guest(f"mv /root/sources.list {_SOURCES}")
    # What the timer starts, and no one has to ask for.
    guest("systemctl start provision-apply.service", timeout_s=_WITHIN_S)
    assert keeper.status(DUO)["state"] == "ready"
    assert _slot(keeper, _NEWEST)["state"] == "ready"
    assert guest("provision status --check", check=False).returncode == 0


def test_what_any_installed_kernel_needs_is_kept(keeper: Keeper) -> None:
    """The running one, the next one, and one that could be chosen at a boot."""
    there = keeper.entries(DUO)
    assert len(there) == 3
    assert json.loads(keeper.guest("provision gc --json").stdout)["artifacts"] == []
    assert keeper.entries(DUO) == there


def test_a_purged_kernels_artifact_goes_and_the_others_stay(keeper: Keeper) -> None:
    guest = keeper.guest
    gone = keeper.artifact(DUO, f"kernels/{_NEWEST}")
    left = keeper.entries(DUO) - {gone}
    guest(f"{_APT} purge linux-image-{_NEWEST}", timeout_s=_WITHIN_S)
    assert guest(f"test -e /lib/modules/{_NEWEST}", check=False).returncode == _FAILED
    removed = json.loads(guest("provision gc --json").stdout)["artifacts"]
    assert [(one["digest"], one["kernel"]) for one in removed] == [(gone, _NEWEST)]
    assert keeper.entries(DUO) == left
    assert guest(f"ls {_STORE}/kernels").stdout.split() == sorted([OLD_KERNEL, _OLDER])
    for release in (OLD_KERNEL, _OLDER):
        guest(f"provision verify $(readlink -f {_STORE}/kernels/{release})")
    keeper.apply()
    assert keeper.duo() == _LOADED
    assert set(keeper.slots(DUO)) == {OLD_KERNEL, _OLDER}
