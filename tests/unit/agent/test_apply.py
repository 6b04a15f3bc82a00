"""Runs of the agent: what they do, remember and leave alone, whatever others do meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kit.artifact import KERNEL, make_pin, write, write_manifest
from kit.host_tree import DRIVER, NEXT
from provision.agent.removal import remove_unneeded
from provision.agent.rollback import rollback
from provision.agent.run import plan_host
from provision.host.devices import DeviceFacts, write_facts
from provision.manifest import Container, load_manifest
from provision.store.entries import link_kernel, linked_kernels, remove
from provision.store.obtain import Stored
from provision.store.state import copies_of, load_state
from unit.agent.host import NEWEST, OLDER, Host


def test_a_driver_that_no_container_asks_for_has_no_vendor_file_and_lacks_none(
    ready: Host,
) -> None:
    entry = ready.layout.entry(ready.layout.current.readlink().name)
    manifest = load_manifest(entry)
    write_manifest(entry, manifest, container=Container())
    ready.layout.vendor_config.unlink()
    assert ready.kinds() == []
    assert ready.artifact().state == "ready"


def test_what_killed_runs_left_behind_goes(ready: Host) -> None:
    folder = ready.layout.folder
    for name in (
        ".partial-aaaaaaaaaaaa/x",
        ".removed-bbbbbbbbbbbb/x",
        "kernels/.tmp",
        ".state.json.x",
    ):
        write(folder / name, b"")
    (folder / ".current.1").symlink_to("nowhere")
    assert ready.kinds() == []
    names = [path.name for path in (*folder.iterdir(), *ready.layout.kernels.iterdir())]
    assert [name for name in names if name.startswith(".")] == [".lock"]
    assert ".partial-aaaaaaaaaaaa" in "".join(ready.notes)


def test_what_is_missing_of_them_is_in_the_status(host: Host) -> None:
    host.apply()
    assert host.apply().status.drivers[0].notes == ()
    write_facts(host.root, DRIVER, DeviceFacts(devices=(), problems=("GPU 1: GPU is lost",)))
    status = host.apply().status
    assert status.drivers[0].notes == ("GPU 1: GPU is lost",)
    assert (status.state, status.exit_code) == ("ready", 0)


@pytest.fixture
def back(ready: Host) -> Host:
    """A host that was rolled back from the newest version, which 'latest' is."""
    ready.apply(update=True)
    assert ready.current() == NEWEST
    rollback(ready.root, ready.desired(), DRIVER)
    assert ready.current() == OLDER
    return ready


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
        host.build(None, newer)
        link_kernel(host.layout, KERNEL, newer.short_digest)

    _meanwhile(twice, switched)
    twice.apply()
    assert load_state(twice.layout).of(KERNEL).previous == newer.short_digest


def test_a_kernel_that_comes_after_its_artifact_changes_nothing(ready: Host) -> None:
    """As the slot or deployment of an image, or a package, that was prepared for."""
    ready.prepare(NEXT)
    ready.add_kernel(NEXT)
    symbols = ready.root / f"lib/modules/{NEXT}/build/Module.symvers"
    write(symbols, b"0x1\tmodule_layout")
    assert ready.kinds() == [f"try {NEXT}"]
    # From now on it is a kernel like any other.
    write(symbols, b"0x2\tmodule_layout")
    assert ready.kinds() == [f"prepare {NEXT}"]


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
