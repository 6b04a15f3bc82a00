"""A host whose /usr and /lib/modules are read-only, without a package manager.

Drivers come through an engine elsewhere and from an archive that provision.toml names; the next
kernel is what the host's updater says, in the words that real ones have said. The tests are steps
of one scenario, in their order.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from kit.cache import REPOSITORY
from kit.debian import mirror, security_mirror
from kit.guest import DEBIAN_12, guest_of
from kit.hosts import NEW_KERNEL, OLD_KERNEL, SMALL_DRIVER
from kit.immutable import read_only_usr, recorded_updater
from vm.keeping import OPEN_DEVICE, Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit.guest import Guest

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(8)]

_UPDATERS = REPOSITORY / "tests/data/updaters"
_WITHIN_S = 900
_ARCHIVE = """
[distros.debian.archive]
mirror = "{mirror}"
security_mirror = "{security}"
"""
# The updater's program, and the arguments that its answer was recorded for.
_STAND_INS = {"rpm-ostree": "status --json", "update_engine_client": "-status"}
_LINK = f"/var/lib/provision/{SMALL_DRIVER}/kernels/{NEW_KERNEL}"


@pytest.fixture(scope="module")
def keeper(bookworm_product: Path, engine_address: str) -> Iterator[Keeper]:
    """A guest whose /usr can't be written, from here on and at every boot."""
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        for name, words in _STAND_INS.items():
            guest.write(f"/usr/local/bin/{name}", recorded_updater(words, f"/srv/{name}"))
            guest(f"chmod +x /usr/local/bin/{name}")
        guest("rm -r /etc/apt /var/lib/apt /usr/bin/apt-get /usr/bin/dpkg")
        guest.write("/etc/systemd/system/read-only.service", read_only_usr())
        guest("systemctl enable --now read-only.service")
        keeper = Keeper(guest, engine_address)
        keeper.want(**{SMALL_DRIVER: "latest"})
        archive = _ARCHIVE.format(mirror=mirror(), security=security_mirror())
        guest("cat >>/etc/provision/provision.toml", stdin=archive)
        yield keeper


def _is_read_only(guest: Guest) -> bool:
    done = [guest(f"touch {path}/x", check=False) for path in ("/usr", "/lib/modules")]
    return all("Read-only file system" in one.stderr for one in done)


def _await_artifact(guest: Guest) -> None:
    """Wait until the artifact for the next kernel is there."""
    deadline = time.monotonic() + _WITHIN_S
    while guest(f"test -e {_LINK}", check=False).returncode != 0:
        log = guest("journalctl -b --no-pager -u 'provision-*'").stdout
        assert time.monotonic() < deadline, log
        time.sleep(2)


def test_a_driver_is_built_elsewhere_and_loaded_from_the_store(keeper: Keeper) -> None:
    guest = keeper.guest
    assert _is_read_only(guest)
    keeper.apply()
    assert keeper.status(SMALL_DRIVER)["state"] == "ready"
    assert guest(OPEN_DEVICE).stdout == "opened\n"
    assert guest("find /lib/modules -name 'v4l2loopback*'").stdout == ""


def test_units_are_set_up(keeper: Keeper) -> None:
    keeper.guest("provision units")
    units = "provision-boot.service provision-kernel.path provision-apply.timer"
    assert keeper.guest(f"systemctl is-enabled {units}").stdout.split() == ["enabled"] * 3
    # What starts the agent in this scenario are the updaters.
    keeper.guest("systemctl stop provision-apply.timer")


def test_the_kernel_of_a_staged_deployment_is_prepared(keeper: Keeper) -> None:
    guest = keeper.guest
    recorded = _UPDATERS / "rpm-ostree_staged.json"
    guest("mkdir -p /ostree/deploy/default/deploy && touch /run/ostree-booted")
    guest.put(recorded, "/srv/rpm-ostree")
    (deployment,) = json.loads(recorded.read_text())["deployments"]
    name = f"{deployment['checksum']}.{deployment['serial']}"
    folder = f"/ostree/deploy/{deployment['osname']}/deploy/{name}/usr/lib/modules/{NEW_KERNEL}"
    # libostree tells anyone who watches by this folder's time.
    guest(f"mkdir -p {folder} && touch {folder}/vmlinuz && touch /ostree/deploy")
    _await_artifact(guest)
    keeper.apply()
    slots = keeper.slots(SMALL_DRIVER)
    assert {name: slot["state"] for name, slot in slots.items()} == {
        OLD_KERNEL: "ready",
        NEW_KERNEL: "ready",
    }
    assert slots[NEW_KERNEL]["role"] == "next"


def test_a_deployment_that_is_gone_leaves_nothing_behind(keeper: Keeper) -> None:
    guest = keeper.guest
    guest("rm -r /run/ostree-booted /ostree")
    guest("provision gc")
    assert guest(f"test -e {_LINK}", check=False).returncode != 0
    assert keeper.entries(SMALL_DRIVER) == {keeper.artifact(SMALL_DRIVER)}


def test_the_kernel_in_the_other_slot_is_prepared(keeper: Keeper) -> None:
    guest = keeper.guest
    boot = "/boot/flatcar"
    # An image says its release in its head.
    guest(
        f"mkdir {boot} && cp /boot/vmlinuz-{OLD_KERNEL} {boot}/vmlinuz-a &&"
        f" sed 's/{OLD_KERNEL}/{NEW_KERNEL}/' {boot}/vmlinuz-a >{boot}/vmlinuz-b"
    )
    guest.put(_UPDATERS / "update-engine_downloading.txt", "/srv/update_engine_client")
    keeper.apply()
    assert set(keeper.slots(SMALL_DRIVER)) == {OLD_KERNEL}
    guest.put(_UPDATERS / "update-engine_need-reboot.txt", "/srv/update_engine_client")
    keeper.apply()
    slot = keeper.slots(SMALL_DRIVER)[NEW_KERNEL]
    assert (slot["role"], slot["state"]) == ("next", "ready")
    guest(f"provision verify $(readlink -f {_LINK})")


def test_after_a_reboot_without_a_network_it_is_loaded_again(keeper: Keeper) -> None:
    guest = keeper.guest
    guest.set_network(on=False)
    guest.reboot()
    assert _is_read_only(guest)
    log = keeper.boot_log()
    assert guest("systemctl show --value -p Result provision-boot").stdout == "success\n", log
    assert guest(OPEN_DEVICE).stdout == "opened\n", log
