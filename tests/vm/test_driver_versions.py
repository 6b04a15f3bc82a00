"""Another version in provision.toml: built beside the old one, switched when idle, rolled back.

With each change, test_power_cut.py goes from one version to the next in a guest, and
engine/test_agent.py rolls back.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kit.duo import DUO, DUO_FLAG
from kit.guest import DEBIAN_12, IMAGE, guest_of
from vm.keeping import Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.nightly, pytest.mark.minutes(6)]

_OLD = "module 1.0 library 1.0"
_NEW = "module 2.0 library 2.0"
_IN_USE = 4
_HOLD = "nohup sleep 1000 </dev/duo >/dev/null 2>&1 & echo $!"


@pytest.fixture(scope="module")
def keeper(bookworm_product: Path, engine_address: str, duo_drivers: Path) -> Iterator[Keeper]:
    """A guest with the driver in version 1.0, loaded."""
    with guest_of(DEBIAN_12) as guest:
        guest.install(bookworm_product)
        keeper = Keeper(guest, engine_address)
        keeper.put_catalogue(duo_drivers)
        keeper.want(duo="1.0")
        keeper.apply()
        yield keeper


def test_module_and_library_are_of_the_version_that_is_asked_for(keeper: Keeper) -> None:
    assert keeper.duo() == _OLD
    assert keeper.status(DUO)["state"] == "ready"


def test_in_use_it_is_prepared_and_nothing_is_forced(keeper: Keeper) -> None:
    old = keeper.artifact(DUO)
    pid = keeper.guest(_HOLD).stdout.strip()
    keeper.want(duo="2.0")
    keeper.apply(status=_IN_USE)
    # The new one is there, the old one serves: both of its halves.
    assert len(keeper.entries(DUO)) == 2
    assert keeper.artifact(DUO) == old
    assert keeper.duo() == _OLD
    status = keeper.status(DUO)
    assert status["state"] == "reboot-required"
    assert any(pid in user for user in status["users"]), status
    assert keeper.guest("provision status --check", check=False).returncode == _IN_USE
    keeper.guest(f"kill {pid}")


def test_idle_it_is_switched_both_halves_at_once(keeper: Keeper) -> None:
    keeper.apply()
    assert keeper.duo() == _NEW
    assert keeper.status(DUO)["state"] == "ready"
    run = "podman --runtime oci-decorator run --rm --network none"
    assert keeper.guest(f"{run} -e {DUO_FLAG}=all {IMAGE} duo-version").stdout.strip() == _NEW


def test_a_second_apply_has_nothing_to_do(keeper: Keeper) -> None:
    assert json.loads(keeper.guest("provision plan --json").stdout)["actions"] == []


def test_rollback_brings_both_halves_back_and_stays(keeper: Keeper) -> None:
    keeper.guest(f"provision rollback {DUO}")
    assert keeper.duo() == _OLD
    keeper.apply()
    assert keeper.duo() == _OLD


def test_asked_to_it_goes_forward_again(keeper: Keeper) -> None:
    keeper.apply("--retry")
    assert keeper.duo() == _NEW
