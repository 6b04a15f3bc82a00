"""Runs of the agent on a host that is all in a folder: what it does, remembers and leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kit.artifact import KERNEL, write
from provision.agent import prepare
from provision.agent.boot import boot
from provision.errors import ConfigError
from provision.store.obtain import Stored
from unit.agent.host import DRIVER, NEWEST, NEXT, OLDER, Host


def test_a_driver_is_made_put_to_use_and_loaded(host: Host) -> None:
    assert host.kinds() == [f"{kind} {KERNEL}" for kind in ("prepare", "activate", "load")]
    assert list(host.kernel.loaded()) == [DRIVER]
    assert host.current() == NEWEST
    result = host.apply()
    assert (result.outcomes, result.status.state, result.status.exit_code) == ((), "ready", 0)
    assert len(host.wanted) == 1


def test_a_new_kernel_is_prepared_before_it_runs(ready: Host) -> None:
    ready.add_kernel(NEXT)
    assert ready.kinds() == [f"prepare {NEXT}"]
    # The version stays, although there is a newer one by now.
    assert ready.wanted[-1].prefer == OLDER
    assert ready.current() == OLDER


def test_versions_move_when_they_are_to(ready: Host) -> None:
    assert ready.kinds() == []
    kinds = [f"{kind} {KERNEL}" for kind in ("prepare", "unload", "activate", "load")]
    assert ready.kinds(update=True) == kinds
    assert ready.current() == NEWEST
    assert ready.kinds(update=True) == [f"prepare {KERNEL}"]
    assert "is the newest" in ready.notes[-1]


def test_no_version_moves_back_unasked(ready: Host) -> None:
    ready.apply(update=True)
    ready.newest = OLDER
    assert ready.kinds(update=True) == [f"prepare {KERNEL}"]
    assert f"{NEWEST} stays: the offered version is older ({OLDER})" in ready.notes[-1]
    assert ready.current() == NEWEST
    assert ready.artifact().state == "ready"


def test_a_version_that_is_named_does_not_move(ready: Host) -> None:
    ready.ask_for(OLDER)
    ready.apply()
    assert ready.kinds(update=True) == []


def test_a_vendor_file_that_is_gone_is_written_again(ready: Host) -> None:
    ready.layout.vendor_config.unlink()
    assert ready.kinds() == [f"activate {KERNEL}"]
    assert ready.layout.vendor_config.exists()


def test_what_is_asked_for_may_be_older(ready: Host) -> None:
    ready.apply(update=True)
    ready.ask_for(OLDER)
    ready.apply()
    assert ready.current() == OLDER


def test_a_version_that_is_offered_no_more_is_not_replaced_by_an_older_one(
    ready: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.apply(update=True)
    # Something changed that artifacts are made from, and the chosen version is gone.
    monkeypatch.setattr("provision.__version__", "another")
    ready.newest = OLDER
    ready.is_gone = True
    artifact = ready.artifact()
    assert ready.current() == NEWEST
    assert artifact.state == "failed"
    assert f"would be replaced by {OLDER}" in (artifact.reason or "")
    # A kernel that has nothing yet gets what there is.
    ready.add_kernel(NEXT)
    assert f"prepare {NEXT}" in ready.kinds()
    assert f"{OLDER} is in the store" in "".join(ready.notes)


def test_another_version_replaces_an_unused_one(ready: Host) -> None:
    ready.ask_for(NEWEST)
    kinds = [f"{kind} {KERNEL}" for kind in ("prepare", "unload", "activate", "load")]
    assert ready.kinds() == kinds
    assert f"rmmod {DRIVER}" in ready.kernel.calls()
    assert ready.current() == NEWEST


def test_a_module_in_use_stays_and_so_does_its_user_space(ready: Host) -> None:
    ready.use()
    ready.ask_for(NEWEST)
    result = ready.apply()
    assert [o.action.kind for o in result.outcomes] == ["prepare"]
    assert (result.status.state, result.status.exit_code) == ("reboot-required", 4)
    (driver,) = result.status.drivers
    assert driver.is_ready
    assert driver.users
    assert ready.current() == OLDER
    assert ready.kinds() == []
    ready.reboot()
    done = boot(ready.root, progress=ready.hear)
    assert [o.action.kind for o in done.outcomes] == ["activate", "load"]
    assert ready.current() == NEWEST


def test_a_corrupted_module_is_found_and_made_again(ready: Host) -> None:
    ready.module().write_bytes(b"broken")
    kinds = ready.kinds()
    assert kinds[0] == f"prepare {KERNEL}"
    assert any("bytes" in note for note in ready.notes)
    assert ready.kinds() == []


def test_a_wiped_store_is_filled_again(ready: Host) -> None:
    shutil.rmtree(ready.layout.folder)
    ready.newest = OLDER
    assert ready.kinds() == [f"prepare {KERNEL}", f"activate {KERNEL}"]


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


def test_a_driver_that_is_not_named_any_more_is_unloaded_and_goes(ready: Host) -> None:
    ready.configure("[policy]\nkeep = 0\n")
    assert ready.kinds() == [f"unload {KERNEL}", f"retire {KERNEL}"]
    assert ready.kernel.loaded() == set()
    assert not ready.layout.current.is_symlink()
    assert not ready.layout.vendor_config.exists()
    assert ready.kinds() == []


def test_without_a_file_nothing_goes(ready: Host) -> None:
    (ready.root / "etc/provision/provision.toml").unlink()
    assert ready.kinds() == []
    assert ready.layout.current.is_symlink()


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_with_a_file_that_a_crash_emptied_nothing_goes(ready: Host, content: str) -> None:
    ready.configure(content)
    assert ready.kinds() == []
    assert ready.layout.current.is_symlink()
    ready.configure("# none\n")
    assert f"retire {KERNEL}" in ready.kinds()


def test_a_file_that_is_a_pipe_is_a_mistake_and_not_waited_for(ready: Host) -> None:
    path = ready.root / "etc/provision/provision.toml"
    path.unlink()
    assert ready.kinds() == []
    os.mkfifo(path)
    with _limit(10), pytest.raises(ConfigError) as error:
        ready.desired()
    assert [mistake.message for mistake in error.value.mistakes] == ["not a regular file"]


@contextmanager
def _limit(seconds: int) -> Iterator[None]:
    """Fail what waits for longer."""

    def stop(_signal: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_others_can_read_what_goes_on_while_it_does(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def obtain(*given: Any, **more: Any) -> Stored:  # noqa: ANN401 - handed on
        seen.append(json.loads((host.root / "run/provision/status.json").read_text()))
        return host.obtain(*given, **more)

    monkeypatch.setattr(prepare, "obtain", obtain)
    host.apply()
    assert seen[0]["state"] == "pending"
    assert seen[0]["planned"][0].startswith(f"make the artifact of {DRIVER}")


def test_policy_can_leave_every_unloading_to_a_reboot(ready: Host) -> None:
    ready.configure(f'[drivers.{DRIVER}]\nversion = "{NEWEST}"\n[policy]\nunload = "never"\n')
    assert ready.kinds() == [f"prepare {KERNEL}"]
    assert ready.current() == OLDER
