"""A host of EL keeps its drivers: dnf brings a kernel, and its modules are there at the reboot.

A stand-in of Rocky Linux 10 with real kernels, dnf and kernel-install; modules are built in the
distro's base image, whose packages a mirror on this machine serves. One of two drivers does not
build for the new kernel at first. The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.el_kernels import ElHost
from kit.engine import Engine
from kit.guest import EL_10, Recipe, guest_of
from kit.made_up import MADE_UP
from kit.two_part_driver import DUO
from vm import next_kernel
from vm.conftest import HOST
from vm.managed import ManagedGuest

pytestmark = [pytest.mark.nightly, pytest.mark.stages, pytest.mark.minutes(10)]

_IMAGE = "rockylinux/rockylinux:10"
_DNF_WITHIN_S = 900
_PLUGIN = "/etc/kernel/install.d/95-provision.install"


@pytest.fixture(scope="module")
def host(
    el: ElHost,
    el_mirror: str,
    el_drivers: Path,
    product: Callable[[Recipe], Path],
    engine: Engine,
    engine_address: str,
) -> Iterator[ManagedGuest]:
    """A guest that keeps both drivers, with the units in place."""
    with guest_of(EL_10) as guest:
        el.load(engine, _IMAGE, el_mirror)
        repositories = el.repositories(el_mirror.replace("127.0.0.1", HOST))
        guest.write("/etc/yum.repos.d/kit.repo", repositories)
        guest.install(product(EL_10))
        host = ManagedGuest(guest, engine_address)
        host.put_catalogue(el_drivers)
        host.want(**next_kernel.WANTED)
        host.apply()
        guest("provision units install")
        # What starts the agent in this scenario are kernels.
        guest("systemctl stop provision-apply.timer")
        yield host


def _package(kernel: str) -> str:
    """`6.12.117+deb13-amd64` as dnf names a version: with the architecture that the RPM has."""
    return f"{kernel}.x86_64"


def test_the_running_kernel_has_its_drivers(host: ManagedGuest, el: ElHost) -> None:
    guest = host.guest
    assert guest.kernel() == el.older
    assert json.loads(guest("provision facts --json").stdout)["distro"]["id"] == "rocky"
    assert host.duo() == next_kernel.LOADED
    assert host.is_loaded(MADE_UP)
    assert set(host.slots(DUO)) == {el.older}


def test_kernel_install_has_a_plugin_and_dpkg_no_hooks(host: ManagedGuest) -> None:
    guest = host.guest
    guest(f"test -x {_PLUGIN}")
    assert guest("find /etc/kernel -name '*provision*'").stdout.split() == [_PLUGIN]
    assert json.loads(guest("provision units install --json").stdout)["changed"] is False


def test_modules_for_a_new_kernel_are_built_before_the_reboot(
    host: ManagedGuest, el: ElHost
) -> None:
    guest = host.guest
    before = host.artifact(MADE_UP)
    with host.kernel_service_runs():
        # The service waits until rpm is done, and then builds.
        guest("dnf -y -q upgrade kernel", timeout_s=_DNF_WITHIN_S)
    log = guest("journalctl -b --no-pager -u provision-kernel").stdout
    assert guest("rpm -q kernel-core").stdout.split() == [
        f"kernel-core-{_package(kernel)}" for kernel in (el.older, el.newer)
    ]
    assert host.slots(MADE_UP)[el.newer]["state"] == "ready", log
    assert host.slots(MADE_UP)[el.newer]["role"] == "next"
    # What runs is as it was.
    assert host.artifact(MADE_UP) == before
    assert guest.kernel() == el.older


def test_what_does_not_build_for_it_is_said_before_the_reboot(
    host: ManagedGuest, el: ElHost
) -> None:
    next_kernel.check_failure_is_said(host, running=el.older, coming=el.newer)
    assert (
        next_kernel.COMPILER_SAYS
        in host.guest("journalctl -b --no-pager -u provision-kernel").stdout
    )


def test_the_plugin_by_itself_starts_the_service(host: ManagedGuest, el: ElHost) -> None:
    """Where a kernel's folder was there before, nothing happens in /lib/modules."""
    guest = host.guest
    guest("systemctl stop provision-kernel.path")
    with host.kernel_service_runs():
        guest(f"kernel-install add {el.newer} /usr/lib/modules/{el.newer}/vmlinuz")
    guest("systemctl start provision-kernel.path")


def test_with_a_patch_it_heals(host: ManagedGuest, el: ElHost, el_drivers: Path) -> None:
    next_kernel.heal(host, el_drivers, since=el.newer_number)


def test_after_the_reboot_the_drivers_are_there_without_a_network(
    host: ManagedGuest, el: ElHost
) -> None:
    guest = host.guest
    guest.set_network(on=False)
    guest.reboot()
    assert guest.kernel() == el.newer
    log = host.boot_log()
    assert host.duo() == next_kernel.LOADED, log
    assert host.is_loaded(MADE_UP), log
    for driver in (MADE_UP, DUO):
        assert host.artifact(driver) == host.artifact(driver, f"kernels/{el.newer}")
    next_kernel.check_way_back(host, el.older)


def test_rollback_brings_module_and_library_back_and_stays(host: ManagedGuest) -> None:
    host.guest.set_network(on=True)
    next_kernel.check_rollback(host, host.want)


def test_a_removed_kernels_artifacts_go_and_the_others_stay(host: ManagedGuest, el: ElHost) -> None:
    guest = host.guest
    gone = host.artifact(MADE_UP, f"kernels/{el.older}")
    with host.kernel_service_runs():
        packages = f"kernel-{_package(el.older)} kernel-core-{_package(el.older)}"
        guest(f"dnf -y -q remove {packages}", timeout_s=_DNF_WITHIN_S)
    assert guest(f"ls /boot/vmlinuz-{el.older}", check=False).returncode != 0
    next_kernel.check_only_needed_stays(host, el.newer)
    assert gone not in host.entries(MADE_UP)
