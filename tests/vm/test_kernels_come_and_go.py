"""Kernels whose headers no one has, or not yet, and kernels that are removed.

The archive of Debian 12 is what it is for users: of 6.1.0-52 it has the kernel and no headers any
more, those of 6.1.0-50 are in the release, those of 6.1.0-56 only among the security updates. The
tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.engine import Engine
from kit.guest import DEBIAN_12, Guest, guest_of
from kit.hosts import OLD_KERNEL
from kit.two_part_driver import DUO
from vm.managed import APT, ManagedGuest

pytestmark = [pytest.mark.nightly, pytest.mark.stages, pytest.mark.minutes(9)]

# Cloud kernels: a fifth of the others' size, for a guest that is emulated.
_DROPPED = "6.1.0-52-cloud-amd64"
_OLDER = "6.1.0-50-cloud-amd64"
_NEWEST = "6.1.0-56-cloud-amd64"
_LOADED = "module 1.0 library 1.0"

_FAILED = 1
_NOT_FOUND = 3
_WITHIN_S = 900
_SOURCES = "/etc/apt/sources.list"
_STORE = f"/var/lib/provision/{DUO}"


@pytest.fixture(scope="module")
def host(bookworm_product: Path, engine_address: str, duo_drivers: Path) -> Iterator[ManagedGuest]:
    """A guest that keeps a driver, with the units in place."""
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        host = ManagedGuest(guest, engine_address)
        host.put_catalogue(duo_drivers)
        host.want(duo="1.0")
        host.apply()
        guest("provision units install")
        # What starts the agent in this scenario are kernels.
        guest("systemctl stop provision-apply.timer")
        yield host


def _add_kernel(guest: Guest, release: str) -> None:
    """Write the files of an installed kernel; no one boots it."""
    guest(
        f"touch /boot/vmlinuz-{release} && mkdir /lib/modules/{release}"
        f" && touch /lib/modules/{release}/modules.dep"
    )


def _remove_kernel(guest: Guest, release: str) -> None:
    guest(f"rm -r /boot/vmlinuz-{release} /lib/modules/{release}")


def _slot(host: ManagedGuest, release: str) -> dict[str, Any]:
    return host.slots(DUO).get(release, {"state": None})


def _lacks_headers(host: ManagedGuest, release: str) -> dict[str, Any]:
    """Wait until the host says so of a kernel; what it says."""
    host.wait(lambda: _slot(host, release)["state"] == "missing")
    status = host.status(DUO)
    assert (status["state"], status["is_ready"]) == ("next-kernel-not-ready", True)
    slot = _slot(host, release)
    assert f"No headers are packaged for the kernel {release}" in slot["reason"]
    assert slot["resolution"]
    # What runs is as it was.
    assert host.slots(DUO)[OLD_KERNEL]["state"] == "ready"
    assert host.duo() == _LOADED
    return slot


def test_a_kernel_that_the_archive_has_dropped_is_named_and_what_to_do(host: ManagedGuest) -> None:
    guest = host.guest
    _add_kernel(guest, _DROPPED)
    slot = _lacks_headers(host, _DROPPED)
    # The way out: a kernel that is packaged.
    assert _OLDER in slot["failure"]["details"]
    assert guest("provision status --check", check=False).returncode == _NOT_FOUND
    assert _DROPPED in guest("provision doctor", check=False).stdout
    _remove_kernel(guest, _DROPPED)


def test_a_kernel_that_is_packaged_is_prepared(host: ManagedGuest) -> None:
    _add_kernel(host.guest, _OLDER)
    host.wait(lambda: _slot(host, _OLDER)["state"] == "ready")
    assert host.status(DUO)["state"] == "ready"


def test_a_package_whose_headers_are_late_is_named(host: ManagedGuest) -> None:
    """The kernel comes by hand, from an archive that this host's sources do not name yet."""
    guest = host.guest
    guest(f"{APT} update && {APT} --download-only install linux-image-{_NEWEST}")
    guest(f"cp {_SOURCES} /root && sed -i /security/d {_SOURCES}")
    guest("dpkg -i /var/cache/apt/archives/linux-image-*.deb", timeout_s=_WITHIN_S)
    slot = _lacks_headers(host, _NEWEST)
    assert "security" not in slot["failure"]["details"]
    # An admin's own look says the same.
    host.apply(status=_NOT_FOUND)


def test_it_heals_by_itself_when_they_arrive(host: ManagedGuest) -> None:
    guest = host.guest
    guest(f"mv /root/sources.list {_SOURCES}")
    # What the timer starts, and no one has to ask for.
    guest("systemctl start provision-apply.service", timeout_s=_WITHIN_S)
    assert host.status(DUO)["state"] == "ready"
    assert _slot(host, _NEWEST)["state"] == "ready"
    assert guest("provision status --check", check=False).returncode == 0


def test_what_any_installed_kernel_needs_is_kept(host: ManagedGuest) -> None:
    """The running one, the next one, and one that could be chosen at a boot."""
    there = host.entries(DUO)
    assert len(there) == 3
    assert json.loads(host.guest("provision gc --json").stdout)["artifacts"] == []
    assert host.entries(DUO) == there


def test_a_purged_kernels_artifact_goes_and_the_others_stay(host: ManagedGuest) -> None:
    guest = host.guest
    gone = host.artifact(DUO, f"kernels/{_NEWEST}")
    left = host.entries(DUO) - {gone}
    guest(f"{APT} purge linux-image-{_NEWEST}", timeout_s=_WITHIN_S)
    assert guest(f"test -e /lib/modules/{_NEWEST}", check=False).returncode == _FAILED
    removed = json.loads(guest("provision gc --json").stdout)["artifacts"]
    assert [(one["digest"], one["kernel"]) for one in removed] == [(gone, _NEWEST)]
    assert host.entries(DUO) == left
    assert guest(f"ls {_STORE}/kernels").stdout.split() == sorted([OLD_KERNEL, _OLDER])
    for release in (OLD_KERNEL, _OLDER):
        guest(f"provision verify $(readlink -f {_STORE}/kernels/{release})")
    host.apply()
    assert host.duo() == _LOADED
    assert set(host.slots(DUO)) == {OLD_KERNEL, _OLDER}


def test_an_unprepared_kernel_boots_and_is_then_served(host: ManagedGuest, engine: Engine) -> None:
    guest = host.guest
    _remove_kernel(guest, _OLDER)
    guest(f"update-grub && systemctl stop provision-kernel.path && provision unload {DUO}")
    guest(f"rm -r {_STORE}/[0-9a-f]* {_STORE}/kernels && sync")
    engine.docker("image", "rm", *(name for name in engine.images() if f"/{DUO}:1.0-" in name))
    guest.reboot()
    host.wait(lambda: guest("test -c /dev/duo", check=False).returncode == 0)
    host.wait_for_services()
    assert host.duo() == _LOADED
    assert host.status(DUO)["state"] == "ready"
