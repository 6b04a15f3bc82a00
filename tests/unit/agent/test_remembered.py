"""What is remembered outlives what may happen to its file: an agent loses no decision silently."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kit.artifact import KERNEL
from kit.host_tree import DRIVER, NEXT
from provision.agent.rollback import rollback
from provision.agent.run import boot, plan_host
from provision.errors import ProvisionError
from provision.store.state import copies_of, load_state
from unit.agent.host import NEWEST, OLDER, Host


@pytest.fixture
def back(ready: Host) -> Host:
    """A host that was rolled back from the newest version, which 'latest' is."""
    ready.apply(update=True)
    assert ready.current() == NEWEST
    rollback(ready.root, ready.desired(), DRIVER)
    assert ready.current() == OLDER
    return ready


def _edit(host: Host, **changes: Any) -> None:  # noqa: ANN401 - anything that JSON has
    document = json.loads(host.layout.state.read_text())
    kernel = document["kernels"][KERNEL]
    for name, value in changes.items():
        (kernel if name in kernel else document)[name] = value
    host.layout.state.write_text(json.dumps(document))


def test_a_key_of_a_later_version_costs_nothing_and_stays(back: Host) -> None:
    rejected = load_state(back.layout).of(KERNEL).rejected
    document = json.loads(back.layout.state.read_text())
    document["kernels"][KERNEL]["of_a_later_version"] = {"a": 1}
    back.layout.state.write_text(json.dumps(document))
    assert back.kinds() == []
    assert back.current() == OLDER
    assert back.artifact().rejected == rejected
    back.add_kernel(NEXT)
    assert back.kinds() == [f"prepare {NEXT}"]
    # 'latest' is still what it was when it was chosen.
    assert back.wanted[-1].prefer == OLDER
    kernel = json.loads(back.layout.state.read_text())["kernels"][KERNEL]
    assert kernel["of_a_later_version"] == {"a": 1}


@pytest.mark.parametrize("text", ["{", '{"schema": 1, "kernels": []}'])
def test_a_file_that_cannot_be_read_is_said_and_kept_and_the_version_stays(
    text: str, back: Host
) -> None:
    back.layout.state.write_text(text)
    _observed, _planned, status = plan_host(back.root, back.desired())
    (note,) = status.drivers[0].notes
    assert str(back.layout.state) in note
    back.apply()
    assert back.current() == OLDER
    assert back.wanted[-1].prefer == OLDER
    (kept,) = copies_of(back.layout.state)
    assert kept.read_text() == text
    # It is said until the copy is removed.
    (driver,) = back.apply().status.drivers
    assert "set aside" in driver.notes[0]
    assert json.loads((back.root / "run/provision/status.json").read_text())["drivers"][0]["notes"]
    kept.unlink()
    assert back.apply().status.drivers[0].notes == ()


def test_a_boot_into_another_kernel_needs_no_state(ready: Host) -> None:
    ready.add_kernel(NEXT)
    ready.apply()
    _edit(ready, schema=2)
    ready.boot(NEXT)
    assert [o.action.kind for o in boot(ready.root).outcomes] == ["activate", "load"]
    assert list(ready.loaded()) == [DRIVER]
    assert boot(ready.root).outcomes == ()


def test_a_driver_that_a_newer_provision_knows_is_not_taken_out_of_use(ready: Host) -> None:
    _edit(ready, schema=2)
    ready.boot()
    ready.configure("[policy]\n")
    result = ready.apply()
    assert isinstance(result.outcomes[-1].error, ProvisionError)
    # Of a driver that is not wanted the status has no line; the failure shows all the same.
    assert (result.status.state, result.status.exit_code) == ("failed", 1)
    assert result.status.error is not None
    assert "newer provision" in result.status.error.message
    assert ready.layout.current.is_symlink()
