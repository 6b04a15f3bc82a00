"""The agent is killed anywhere: the next boot has a whole driver, the next run does the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.artifact import KERNEL, write
from kit.host_tree import DRIVER, NEXT
from provision.agent.removal import remove_unneeded
from provision.agent.rollback import rollback
from provision.agent.run import boot
from unit.agent.host import Host, make_host
from unit.killing import KILLER

pytestmark = [pytest.mark.tier(2), pytest.mark.usefixtures("no_sync")]

# Every how many operations a run is killed: all of them would take minutes.
_STEP = 3


def _first(host: Host) -> None:
    host.apply()


def _new_kernel(host: Host) -> None:
    host.add_kernel(NEXT)
    host.apply()


def _new_version(host: Host) -> None:
    host.configure(f'[drivers.{DRIVER}]\nversion = "2.0"\n')
    host.apply()


def _back(host: Host) -> None:
    rollback(host.root, host.desired(), DRIVER)


def _boot_of_next(host: Host) -> None:
    host.boot(NEXT)
    boot(host.root)


def _retired(host: Host) -> None:
    host.configure("[policy]\n")
    host.apply()


def _gone(host: Host) -> None:
    remove_unneeded(host.root, host.desired())


def _prepare(host: Host, doing: Callable[[Host], None]) -> None:
    """Bring a host to where something is about to be done."""
    if doing is _first:
        return
    host.newest = "1.2"
    host.apply()
    host.newest = "2.0"
    if doing is _back:
        _new_version(host)
    if doing is _boot_of_next:
        _new_kernel(host)
    if doing is _gone:
        _new_version(host)
        host.configure(f'[drivers.{DRIVER}]\nversion = "3.0"\n')
        host.apply()


@pytest.mark.parametrize(
    "doing", [_first, _new_kernel, _new_version, _back, _boot_of_next, _retired, _gone]
)
def test_a_killed_run_costs_no_driver_and_leaves_nothing(
    doing: Callable[[Host], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = make_host(tmp_path / "count", monkeypatch)
    _prepare(counted, doing)
    with KILLER.at(None):
        doing(counted)
    assert KILLER.count > 5
    release = NEXT if doing is _boot_of_next else KERNEL
    for number in range(0, KILLER.count, _STEP):
        host = make_host(tmp_path / str(number), monkeypatch)
        _prepare(host, doing)
        had = host.layout.current.is_symlink()
        with KILLER.at(number):
            doing(host)
        host.boot(release)
        boot(host.root)
        _check_whole(host, expected=had and doing is not _retired)
        host.apply()
        remove_unneeded(host.root, host.desired())
        assert host.leftovers() == []
        assert host.apply().outcomes == ()
        if doing is not _retired:
            _check_whole(host, expected=True)


def _check_whole(host: Host, *, expected: bool) -> None:
    if expected:
        host.uses()
        assert host.loaded() == {DRIVER}
    else:
        host.check_store()


def test_a_status_that_was_cut_off_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch)
    status = host.root / "run/provision/status.json"
    write(status, b'{"schema": 1')
    host.apply()
    assert json.loads(status.read_bytes())["state"] == "ready"
