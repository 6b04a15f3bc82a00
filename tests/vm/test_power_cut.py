"""The power goes at many moments of a change of version: what the next boot finds is whole.

A guest goes from one version of a driver to the next; meanwhile its disk is copied again and again,
each time as a power cut at that moment would leave it. Another guest mounts each copy, which
replays its journal, and does there what a boot does: it puts the store's artifact to use and loads
its module. Then the power is cut for real.
"""

from __future__ import annotations

import subprocess
import time
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from kit.engine import Engine
from kit.guest import DEBIAN_12, Guest, guest_of
from kit.guest.base import base_of
from kit.guest.tree import VENV
from kit.two_part_driver import DUO
from vm.managed import Applied, ManagedGuest

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(12)]

_OLD = "module 1.0 library 1.0"
_NEW = "module 2.0 library 2.0"
# So many copies on either side of the moment from which a boot finds the new version.
_AROUND = 10
# After so many, the next run is tried too.
_HEALED = 3
# While a compiler runs on this machine the guest's disk rests; then every step is worth a look.
_WHILE_BUILDING_S = 5.0
_WHILE_CHANGING_S = 0.1
# So slow a disk that steps of milliseconds last long enough to be hit.
_REQUESTS_PER_SECOND = 30

# It takes some ten.
_INSPECTING_S = 200.0

_STORE = f"/var/lib/provision/{DUO}"
_ENTRIES = f"{_STORE}/{'[0-9a-f]' * 12}"
_INSPECT = f"""
for try in $(seq 200); do test -e /dev/vdb1 && break; sleep 0.3; done
mount /dev/vdb1 /mnt
# Programs are the same here, and this guest has them in memory: only what changes is the copy's.
for name in proc sys dev usr {VENV[1:]}; do mount --bind /$name /mnt/$name; done
chroot /mnt sh -c '
    provision apply --boot >/dev/null 2>/root/boot.log; boot=$?
    said=$({_STORE}/current/driver/usr/bin/duo-version); same=$?
    provision verify $(readlink -f {_STORE}/current) >/dev/null; whole=$?
    printf "%s\\n%s\\n%s\\n%s\\n" $boot $same "$said" $whole
    cat /root/boot.log >&2
'
"""
_HEAL = f"""
chroot /mnt sh -c '
    provision apply >/dev/null && {_STORE}/current/driver/usr/bin/duo-version
    ls -A {_STORE} | grep "^[.]" | grep -v -x .lock
    ls -d {_ENTRIES} | wc -l
'
"""
_LEAVE = f"rmmod {DUO}; umount -R /mnt"


@dataclass(frozen=True, slots=True)
class Found:
    """What a boot from a copy of the disk came to."""

    # Exit status of the boot's part of the agent.
    boot: int
    # Exit status of the driver's program, which fails where its halves differ.
    same: int
    # What that printed: both halves' versions.
    said: str
    # Exit status of a comparison of the entry in use with its manifest.
    whole: int
    # What the agent said.
    log: str


@pytest.fixture(scope="module")
def host(bookworm_product: Path, engine_address: str, duo_drivers: Path) -> Iterator[ManagedGuest]:
    """A guest with the driver in its old version."""
    # Booted, not from a snapshot: that would be half a gigabyte of each copy.
    with Guest(base_of(DEBIAN_12)) as guest:
        guest.install(bookworm_product)
        host = ManagedGuest(guest, engine_address)
        host.put_catalogue(duo_drivers)
        host.want(duo="1.0")
        host.apply()
        guest("sync")
        yield host


@pytest.fixture(scope="module")
def copies(
    host: ManagedGuest, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Path]]:
    """Copies of the guest's disk, from before a change of version until after it."""
    folder = tmp_path_factory.mktemp("cuts")
    host.want(duo="2.0")
    host.guest("sync")
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(host.apply)
        yield _copy_until(done, host.guest, engine, folder)
    for copy in folder.iterdir():
        copy.unlink()


def _copy_until(done: Future[Applied], guest: Guest, engine: Engine, folder: Path) -> list[Path]:
    machine = guest.machine
    copies: list[Path] = []
    is_built = False
    while not done.done():
        copies.append(_copied(guest, folder, len(copies)))
        if is_built:
            _wait(done, _WHILE_CHANGING_S)
        elif _is_built_soon(done, engine):
            is_built = True
            machine.slow_disk(_REQUESTS_PER_SECOND)
    machine.slow_disk(0)
    done.result()
    return [*copies, _copied(guest, folder, len(copies))]


def _copied(guest: Guest, folder: Path, number: int) -> Path:
    copy = folder / f"{number:03}.qcow2"
    guest.machine.copy_disk(guest.disk, copy)
    return copy


def _is_built_soon(done: Future[Applied], engine: Engine) -> bool:
    """Whether the engine has the image before it is time for another copy."""
    until = time.monotonic() + _WHILE_BUILDING_S
    while time.monotonic() < until and not done.done():
        if any(f"/{DUO}:2.0" in name for name in engine.images()):
            return True
        _wait(done, _WHILE_CHANGING_S)
    return False


def _wait(done: Future[Applied], seconds: float) -> None:
    try:
        done.exception(timeout=seconds)
    except TimeoutError:
        return


def _inspect(inspector: Guest, copy: Path, *, heal: bool) -> tuple[Found, list[str]]:
    machine = inspector.machine
    machine.attach(copy)
    seen = inspector(_INSPECT, timeout_s=_INSPECTING_S)
    boot, same, said, whole = seen.stdout.splitlines()
    healed = inspector(_HEAL, check=False).stdout.splitlines() if heal else []
    inspector(_LEAVE)
    machine.detach()
    return Found(int(boot), int(same), said, int(whole), seen.stderr), healed


def _inspect_patiently(inspector: Guest, copy: Path, *, heal: bool) -> tuple[Found, list[str]]:
    """The same, again where the guest stood still: a driver that hangs would do so twice."""
    try:
        return _inspect(inspector, copy, heal=heal)
    except subprocess.TimeoutExpired:
        inspector.kill()
        inspector.start()
        return _inspect(inspector, copy, heal=heal)


def test_whenever_the_power_goes_a_boot_finds_the_old_or_the_new_driver(
    bookworm_product: Path, copies: list[Path]
) -> None:
    with guest_of(DEBIAN_12) as inspector:
        inspector.install(bookworm_product)

        @cache
        def said(number: int) -> str:
            copy = copies[number]
            is_healed = number % _HEALED == 0
            found, healed = _inspect_patiently(inspector, copy, heal=is_healed)
            assert (found.boot, found.same, found.whole) == (0, 0, 0), (copy.name, found)
            assert found.said in {_OLD, _NEW}, (copy.name, found)
            if is_healed:
                # The next run ends what was begun, and nothing of the cut one stays.
                assert healed == [_NEW, "2"], (copy.name, healed)
            return found.said

        numbers = range(len(copies))
        first = bisect_left(numbers, _NEW, key=said)
        around = [said(number) for number in numbers[max(0, first - _AROUND) : first + _AROUND]]
    # From that moment on it is the new one, and never the old one again.
    assert around == sorted(around)
    assert set(around) == {_OLD, _NEW}
    assert len(around) > _AROUND


@pytest.mark.parametrize("seconds", [0.7, 2.0])
def test_a_guest_whose_power_is_cut_while_it_loads_boots_with_a_whole_driver(
    host: ManagedGuest, seconds: float
) -> None:
    guest = host.guest
    guest("provision units install && sync")
    reload = f"while true; do provision unload {DUO}; provision load {DUO}; done >/dev/null 2>&1"
    guest(f"nohup sh -c '{reload}' >/dev/null 2>&1 &")
    time.sleep(seconds)
    guest.kill()
    guest.start()
    log = host.boot_log()
    assert guest("systemctl show --value -p Result provision-boot").stdout == "success\n", log
    assert host.duo() == _NEW
    assert host.status(DUO)["state"] == "ready"
