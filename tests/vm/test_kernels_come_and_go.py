"""A kernel whose headers the archive has dropped.

The archive of Debian 12 is what it is for users: of 6.1.0-52 it has the kernel and no headers any
more; those of 6.1.0-50 are in the release.
"""

from __future__ import annotations

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

# Cloud kernels: a fifth of the others' size, for a guest that is emulated.
_DROPPED = "6.1.0-52-cloud-amd64"
_OLDER = "6.1.0-50-cloud-amd64"
_LOADED = "module 1.0 library 1.0"

_NOT_FOUND = 3
_WITHIN_S = 900


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
        # What starts the agent in this story are kernels.
        guest("systemctl stop provision-apply.timer")
        yield keeper


def _add_kernel(guest: Guest, release: str) -> None:
    """Put there what tells of a kernel; nobody boots it."""
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
