"""A kernel upgrade as an admin does it: apt, reboot, and the drivers are there, without a network.

One of two drivers doesn't build for the new kernel at first: the host says so before the reboot.
The tests are steps of one scenario, in their order.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kit.duo import DUO, DUO_BROKEN, repair_duo
from kit.guest import DEBIAN_12, guest_of
from kit.hosts import NEW_KERNEL, OLD_KERNEL, SMALL_DRIVER
from kit.process import run
from vm.keeping import OPEN_DEVICE, Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.engine import Engine

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(8)]

_APT = "DEBIAN_FRONTEND=noninteractive apt-get -qy"
_APT_WITHIN_S = 1500
_BUILT_WITHIN_S = 900
_FAILED = 1
_METRICS = "/var/lib/prometheus/node-exporter"
_COMPILER = "too few arguments to function"
_LOADED = f"module {DUO_BROKEN} library {DUO_BROKEN}"


@pytest.fixture(scope="module")
def catalogue(duo_drivers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the catalogue, for this scenario to repair."""
    copy = tmp_path_factory.mktemp("catalogue") / "drivers"
    run(["cp", "-r", duo_drivers, copy])
    return copy


@pytest.fixture(scope="module")
def keeper(bookworm_product: Path, engine_address: str, catalogue: Path) -> Iterator[Keeper]:
    """A guest that keeps two drivers, with their modules loaded and the units in place."""
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        guest(f"mkdir -p {_METRICS}")
        keeper = Keeper(guest, engine_address)
        keeper.put_catalogue(catalogue)
        keeper.want(**{SMALL_DRIVER: "latest", DUO: DUO_BROKEN})
        keeper.apply()
        guest("provision units")
        yield keeper


def _link(driver: str, release: str) -> str:
    return f"/var/lib/provision/{driver}/kernels/{release}"


def test_the_running_kernel_has_its_drivers(keeper: Keeper) -> None:
    assert keeper.guest.kernel() == OLD_KERNEL
    assert keeper.duo() == _LOADED
    assert set(keeper.slots(SMALL_DRIVER)) == {OLD_KERNEL}
    assert keeper.guest(OPEN_DEVICE).stdout == "opened\n"


def test_modules_for_a_new_kernel_are_built_before_the_reboot(keeper: Keeper) -> None:
    guest = keeper.guest
    before = keeper.artifact(SMALL_DRIVER)
    packages = f"linux-image-{NEW_KERNEL} linux-headers-{NEW_KERNEL}"
    guest(f"{_APT} update && {_APT} install {packages}", timeout_s=_APT_WITHIN_S)
    # The kernel's packages have started the service; it waits for dpkg and then builds.
    keeper.services_done()
    log = guest("journalctl -b --no-pager -u provision-kernel").stdout
    assert guest(f"test -e {_link(SMALL_DRIVER, NEW_KERNEL)}", check=False).returncode == 0, log
    assert keeper.artifact(SMALL_DRIVER, f"kernels/{NEW_KERNEL}") != before
    # What runs is as it was.
    assert keeper.artifact(SMALL_DRIVER) == before
    assert guest.kernel() == OLD_KERNEL
    assert guest(OPEN_DEVICE).stdout == "opened\n"


def test_what_does_not_build_for_it_is_said_before_the_reboot(keeper: Keeper) -> None:
    guest = keeper.guest
    assert keeper.duo() == _LOADED
    status = keeper.status(DUO)
    assert (status["state"], status["is_ready"]) == ("next-kernel-not-ready", True)
    slots = keeper.slots(DUO)
    assert slots[OLD_KERNEL]["state"] == "ready"
    assert _COMPILER in str(slots[NEW_KERNEL]["failure"])
    assert guest("provision status --check", check=False).returncode == _FAILED
    assert _COMPILER in guest("journalctl -b --no-pager -u provision-kernel").stdout
    metrics = guest(f"cat {_METRICS}/provision.prom").stdout
    for kernel, role, ready in ((NEW_KERNEL, "next", 0.0), (OLD_KERNEL, "running", 1.0)):
        name = f'provision_driver_ready{{driver="{DUO}",kernel="{kernel}",role="{role}"}} '
        (value,) = (line for line in metrics.splitlines() if line.startswith(name))
        assert float(value.removeprefix(name)) == ready


def test_nothing_holds_up_a_shutdown_for_ever(keeper: Keeper) -> None:
    """The inhibitor is gone with the build."""
    assert "provision" not in keeper.guest("systemd-inhibit --list --no-pager").stdout


def test_with_a_patch_it_heals(keeper: Keeper, catalogue: Path) -> None:
    repair_duo(catalogue)
    keeper.put_catalogue(catalogue)
    keeper.apply()
    assert keeper.status(DUO)["state"] == "ready"
    assert {slot["state"] for slot in keeper.slots(DUO).values()} == {"ready"}


def test_after_the_reboot_the_drivers_are_there_without_a_network(keeper: Keeper) -> None:
    guest = keeper.guest
    guest.set_network(on=False)
    guest.reboot()
    assert guest.kernel() == NEW_KERNEL
    log = keeper.boot_log()
    assert keeper.duo() == _LOADED, log
    assert guest(OPEN_DEVICE).stdout == "opened\n", log
    for driver in (SMALL_DRIVER, DUO):
        assert keeper.artifact(driver) == keeper.artifact(driver, f"kernels/{NEW_KERNEL}")
        # The way back: the kernel before finds its modules, too.
        guest(f"provision verify $(readlink -f {_link(driver, OLD_KERNEL)})")


def test_an_unprepared_kernel_boots_and_is_then_served(keeper: Keeper, engine: Engine) -> None:
    guest = keeper.guest
    entry = guest(f"readlink -f {_link(DUO, NEW_KERNEL)}").stdout.strip()
    guest.set_network(on=True)
    guest("systemctl stop provision-apply.timer provision-kernel.path")
    guest(f"provision unload {DUO} && rm -r {entry} {_link(DUO, NEW_KERNEL)} && sync")
    images = [name for name in engine.images() if f"/{DUO}:{DUO_BROKEN}-{NEW_KERNEL}" in name]
    engine.docker("image", "rm", *images)
    guest.reboot()
    # Booted as ever, without that driver; the other one is there.
    assert guest(OPEN_DEVICE).stdout == "opened\n"
    deadline = time.monotonic() + _BUILT_WITHIN_S
    while guest("test -c /dev/duo", check=False).returncode != 0:
        log = guest("journalctl -b --no-pager -u 'provision-*'").stdout
        assert time.monotonic() < deadline, log
        time.sleep(2)
    keeper.services_done()
    assert keeper.duo() == _LOADED
    assert keeper.status(DUO)["state"] == "ready"
