"""What others do to a host while something is built for it; in one process, at that very moment.

With real processes: tests/engine/test_at_once.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kit.artifact import KERNEL, make_pin
from kit.host_tree import DRIVER, NEXT
from provision.agent.removal import remove_unneeded
from provision.agent.rollback import rollback
from provision.store.entries import link_kernel, linked_kernels, remove
from provision.store.obtain import Stored
from provision.store.state import load_state
from unit.agent.host import NEWEST, OLDER, Host

THIRD = "3.0"


def _meanwhile(host: Host, *doing: Callable[[], object], after: bool = False) -> None:
    """Let others do something, once each, while artifacts are made or right after one was."""
    left = list(doing)

    def build(*given: Any, **more: Any) -> Stored:  # noqa: ANN401 - handed on
        if left and not after:
            left.pop(0)()
        made = host.build(*given, **more)
        if left and after:
            left.pop(0)()
        return made

    host.builds = build


@pytest.fixture
def twice(ready: Host) -> Host:
    """A host that has used two versions, and should have a third."""
    ready.ask_for(NEWEST)
    ready.apply()
    ready.ask_for(THIRD)
    return ready


def test_a_rollback_during_a_build_waits_for_nothing_and_holds(twice: Host) -> None:
    done: list[str] = []

    def back() -> None:
        rollback(twice.root, twice.desired(), DRIVER)
        done.append(twice.current())

    _meanwhile(twice, back)
    result = twice.apply(retry=True)
    # It was through before the build was.
    assert done == [OLDER]
    assert "rolled back meanwhile" in result.outcomes[0].result
    assert [o.action.kind for o in result.outcomes] == ["prepare"]
    assert twice.current() == OLDER
    assert list(twice.loaded()) == [DRIVER]
    assert twice.kinds() == []
    assert twice.kinds(retry=True)[0] == f"prepare {KERNEL}"
    assert twice.current() == THIRD


def test_garbage_collection_right_after_a_build_costs_a_second_try(ready: Host) -> None:
    """Between an artifact's arrival in the store and its link, nothing says that it is needed."""
    ready.configure(f'[drivers.{DRIVER}]\nversion = "{THIRD}"\n[policy]\nkeep = 0\n')
    gone: list[str] = []

    def clean() -> None:
        gone.extend(one.digest for one in remove_unneeded(ready.root, ready.desired()))

    _meanwhile(ready, clean, after=True)
    assert ready.kinds()[0] == f"prepare {KERNEL}"
    assert gone == [make_pin(version=THIRD).short_digest]
    assert ready.current() == THIRD
    assert ready.layout.current.resolve(strict=True)


def test_an_artifact_that_goes_again_and_again_is_a_failure(ready: Host) -> None:
    ready.ask_for(THIRD)
    digest = make_pin(version=THIRD).short_digest
    _meanwhile(ready, *[lambda: remove(ready.layout, digest) for _ in range(9)], after=True)
    assert "again and again" in (ready.artifact().reason or "")
    assert ready.current() == OLDER


def test_what_a_kernel_uses_when_the_build_is_done_is_what_it_goes_back_to(twice: Host) -> None:
    """Not what it used when the build began."""
    newer = make_pin(version="2.5")

    def switched() -> None:
        host = twice
        host.build(None, type("Resolved", (), {"pin": newer})())
        link_kernel(host.layout, KERNEL, newer.short_digest)

    _meanwhile(twice, switched)
    twice.apply()
    assert load_state(twice.layout).of(KERNEL).previous == newer.short_digest


def test_what_was_prepared_for_a_kernel_to_come_stays(ready: Host) -> None:
    ready.prepare(NEXT)
    assert remove_unneeded(ready.root, ready.desired()) == []
    assert NEXT in linked_kernels(ready.layout)
    # Also where there was nothing left to make.
    ready.add_kernel("6.1.0-99-amd64")
    ready.apply()
    state = load_state(ready.layout)
    assert state.of("6.1.0-99-amd64").announced is None
    ready.prepare("6.1.0-99-amd64")
    ready.remove_kernel("6.1.0-99-amd64")
    assert remove_unneeded(ready.root, ready.desired()) == []
    # It runs, and another one after it: now it is a kernel like any other.
    ready.add_kernel(NEXT)
    ready.boot(NEXT)
    ready.apply()
    ready.boot("6.1.0-100-amd64")
    ready.remove_kernel(NEXT)
    gone = [one.kernel for one in remove_unneeded(ready.root, ready.desired())]
    assert gone == ["6.1.0-99-amd64"]
    assert NEXT not in linked_kernels(ready.layout)
