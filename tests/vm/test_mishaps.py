"""What goes wrong under an agent that is at work: its engine dies, a disk fills, clocks jump.

Whatever it is, what served before serves on, and a later run ends what was begun. The tests are
steps of one scenario, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.engine import Engine
from kit.guest import DEBIAN_12, guest_of
from kit.process import wait_for
from kit.two_part_driver import DUO, DUO_BROKEN
from vm.managed import ManagedGuest

pytestmark = [pytest.mark.nightly, pytest.mark.stages, pytest.mark.minutes(8)]

_FAILED = 1
_WITHIN_S = 900
_STORE = "/var/lib/provision"
_DISK = "/srv/store"
# A file system of the store's own, for nothing else to suffer when it is full.
_MOUNT = f"""
truncate -s 32M {_DISK} && mkfs.ext4 -q {_DISK}
mkdir -p {_STORE} && mount -o loop {_DISK} {_STORE}
"""
_FILL = f"cat /dev/zero >{_STORE}/.filler"


@pytest.fixture(scope="module")
def host(bookworm_product: Path, engine_address: str, duo_drivers: Path) -> Iterator[ManagedGuest]:
    """A guest with a driver, whose store has a disk of its own."""
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        guest(_MOUNT)
        host = ManagedGuest(guest, engine_address)
        host.put_catalogue(duo_drivers)
        host.want(duo="1.0")
        host.apply()
        yield host


def _serves(host: ManagedGuest, version: str) -> bool:
    return host.duo() == f"module {version} library {version}"


def _leftovers(host: ManagedGuest) -> list[str]:
    """What a run that failed should not have left in the store."""
    names = host.guest(f"ls -A {_STORE}/{DUO}").stdout.split()
    return [name for name in names if name.startswith(".") and name != ".lock"]


def _forget(engine: Engine, version: str) -> None:
    """Let a version be built again."""
    for name in engine.images():
        if f"/{DUO}:{version}-" in name:
            engine.docker("image", "rm", name)


def test_an_engine_that_dies_in_mid_build_costs_nothing_and_the_next_run_finishes(
    host: ManagedGuest, engine: Engine
) -> None:
    _forget(engine, "2.0")
    host.want(duo="2.0")
    try:
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(host.apply, status=_FAILED)
            wait_for("a build", lambda: engine.containers() or done.done(), within_s=_WITHIN_S)
            engine.kill()
            said = done.result().output
    finally:
        engine.restart(crash=True)
    assert "engine" in said
    assert "Traceback" not in said
    assert host.status(DUO)["is_ready"]
    assert _serves(host, "1.0")
    assert _leftovers(host) == []
    host.apply()
    assert _serves(host, "2.0")


def test_a_full_disk_is_named_and_leaves_nothing_half_done(host: ManagedGuest) -> None:
    guest = host.guest
    before = host.entries(DUO)
    host.want(duo=DUO_BROKEN)
    assert "No space left" in guest(_FILL, check=False).stderr
    said = host.apply(status=_FAILED).output
    # It depends on the blocks that are left whether a folder fails or what is to be in it.
    assert f"The disk that holds '{_STORE}" in said or "No space left on device" in said
    assert host.entries(DUO) == before
    assert _leftovers(host) == []
    assert _serves(host, "2.0")


def test_with_room_again_it_heals(host: ManagedGuest) -> None:
    host.guest(f"rm {_STORE}/.filler")
    host.apply()
    assert _serves(host, DUO_BROKEN)
    assert host.status(DUO)["state"] == "ready"


def test_a_clock_that_is_a_year_behind_holds_nothing_up(host: ManagedGuest) -> None:
    host.guest("date -s '1 year ago'")
    # Neither what is there …
    host.apply()
    # … nor what is to come.
    host.want(duo="1.0")
    host.apply()
    assert _serves(host, "1.0")
    assert host.status(DUO)["state"] == "ready"


def test_a_clock_that_is_a_year_ahead_holds_nothing_up(host: ManagedGuest) -> None:
    """Indexes are read by apt where the engine is, whose clock is right."""
    host.guest("date -s '2 years'")
    host.want(duo="2.0")
    host.apply()
    assert _serves(host, "2.0")


def test_with_the_right_time_it_heals(host: ManagedGuest) -> None:
    host.guest("date -s '1 year ago'")
    host.apply()
    assert _serves(host, "2.0")
    assert host.status(DUO)["state"] == "ready"


def test_a_store_that_was_wiped_is_filled_again(host: ManagedGuest) -> None:
    before = host.artifact(DUO)
    host.guest(f"umount {_STORE} && rm -rf {_STORE}")
    assert not host.status(DUO)["is_ready"]
    assert "from: engine" in host.apply().output
    assert host.artifact(DUO) == before
    assert _serves(host, "2.0")
