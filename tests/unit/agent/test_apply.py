"""Runs of the agent on a host that is all in a folder: what it does, remembers and leaves alone."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from provision.agent import execute
from provision.agent.boot import boot
from provision.agent.rollback import rollback, would_roll_back
from provision.agent.status import SlotStatus
from provision.errors import ConfigError, NotFoundError, ProvisionError
from provision.image.diagnose import BuildError, SourceError
from provision.image.engine import EngineLostError
from provision.install.state import load_state
from provision.pipeline.obtaining import Obtained
from unit.agent.host import DRIVER, NEXT, Host, make_host
from unit.image.fake_engine import FakeEngine
from unit.modules.artifact import KERNEL, write

OLD, NEW = "1.2", "2.0"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return make_host(tmp_path / "host", monkeypatch)


@pytest.fixture
def ready(host: Host) -> Host:
    """A host with version 1.2 loaded."""
    host.newest = OLD
    host.apply()
    host.newest = NEW
    return host


def _ask_for(host: Host, version: str) -> None:
    host.configure(f'[drivers.{DRIVER}]\nversion = "{version}"\n')


def _slot(host: Host, release: str = KERNEL, **mode: bool) -> SlotStatus:
    (driver,) = host.apply(**mode).status.drivers
    return next(slot for slot in driver.kernels if slot.release == release)


def test_a_driver_is_made_put_to_use_and_loaded(host: Host) -> None:
    assert host.kinds() == [f"{kind} {KERNEL}" for kind in ("prepare", "activate", "load")]
    assert list(host.kernel.loaded) == [DRIVER]
    assert host.current() == NEW
    result = host.apply()
    assert (result.outcomes, result.status.state, result.status.exit_code) == ((), "ready", 0)
    assert len(host.wanted) == 1


def test_a_new_kernel_is_prepared_before_it_runs(ready: Host) -> None:
    ready.add_kernel(NEXT)
    assert ready.kinds() == [f"prepare {NEXT}"]
    # The version stays, although there is a newer one by now.
    assert ready.wanted[-1].prefer == OLD
    assert ready.current() == OLD


def test_versions_move_when_they_are_to(ready: Host) -> None:
    assert ready.kinds() == []
    kinds = [f"{kind} {KERNEL}" for kind in ("prepare", "unload", "activate", "load")]
    assert ready.kinds(update=True) == kinds
    assert ready.current() == NEW
    assert ready.kinds(update=True) == [f"prepare {KERNEL}"]
    assert "is the newest" in ready.notes[-1]


def test_a_newer_version_that_cannot_be_had_costs_nothing(ready: Host) -> None:
    ready.broken[KERNEL] = NotFoundError("no network")
    result = ready.apply(update=True)
    assert (result.outcomes[0].error is not None, result.status.state) == (True, "ready")
    ready.broken[KERNEL] = _compile_error()
    result = ready.apply(update=True)
    assert (result.status.state, result.status.is_ready) == ("failed", True)
    # Not at once again, but some time: there may be an even newer one.
    assert ready.kinds(update=True) == []
    failure = load_state(ready.layout).of(KERNEL).failure
    assert failure is not None
    assert not failure.holds(now=failure.time + 24 * 3600)
    ready.broken.clear()
    ready.newest = OLD
    assert ready.kinds(update=True, retry=True) == [f"prepare {KERNEL}"]
    assert ready.apply().status.state == "ready"


def test_another_version_takes_the_place_of_one_that_nobody_uses(ready: Host) -> None:
    _ask_for(ready, NEW)
    kinds = [f"{kind} {KERNEL}" for kind in ("prepare", "unload", "activate", "load")]
    assert ready.kinds() == kinds
    assert ["rmmod", DRIVER] in ready.kernel.calls
    assert ready.current() == NEW


def test_a_module_in_use_stays_and_so_does_its_user_space(ready: Host) -> None:
    ready.use()
    _ask_for(ready, NEW)
    result = ready.apply()
    assert [o.action.kind for o in result.outcomes] == ["prepare"]
    assert (result.status.state, result.status.exit_code) == ("reboot-required", 4)
    (driver,) = result.status.drivers
    assert driver.is_ready
    assert driver.users
    assert ready.current() == OLD
    assert ready.kinds() == []
    ready.reboot()
    done = boot(ready.root, progress=ready.hear)
    assert [o.action.kind for o in done.outcomes] == ["activate", "load"]
    assert ready.current() == NEW


def test_policy_can_leave_every_unloading_to_a_reboot(ready: Host) -> None:
    ready.configure(f'[drivers.{DRIVER}]\nversion = "{NEW}"\n[policy]\nunload = "never"\n')
    assert ready.kinds() == [f"prepare {KERNEL}"]
    assert ready.current() == OLD


def _compile_error() -> BuildError:
    return BuildError(
        "it does not compile",
        resolution="patch it",
        details="demo.c:1: error: no",
        source_errors=[SourceError("demo.c", 1, "no")],
        log=Path("/var/cache/provision/logs/demo.log"),
    )


def test_a_build_that_fails_for_the_next_kernel_costs_nothing_now(ready: Host) -> None:
    ready.add_kernel(NEXT)
    ready.broken[NEXT] = _compile_error()
    result = ready.apply()
    assert (result.status.state, result.status.exit_code) == ("next-kernel-not-ready", 1)
    assert result.status.is_ready
    slot = _slot(ready, NEXT)
    assert (slot.state, slot.reason, slot.resolution) == (
        "failed",
        "it does not compile",
        "patch it",
    )
    assert slot.failure is not None
    assert (slot.failure.reason, slot.failure.details) == ("compile", "demo.c:1: error: no")
    assert slot.failure.log == "/var/cache/provision/logs/demo.log"
    assert ready.kinds() == []
    assert ready.kinds(retry=True) == [f"prepare {NEXT}"]
    ready.broken.clear()
    assert ready.kinds() == []
    assert ready.kinds(retry=True) == [f"prepare {NEXT}"]
    assert ready.apply().status.state == "ready"


def test_a_failed_build_is_tried_again_when_its_inputs_change(ready: Host) -> None:
    ready.add_kernel(NEXT)
    ready.broken[NEXT] = _compile_error()
    ready.apply()
    ready.broken.clear()
    # The recipe's folder has a patch now.
    ready.configure(f'catalogue = ["/srv"]\n[drivers.{DRIVER}]\n')
    write(ready.root / f"srv/{DRIVER}/patches/fix.patch", b"+")
    ready.apply()
    assert ready.layout.kernel_link(NEXT).is_symlink()


def test_what_may_pass_is_asked_again_by_every_run(ready: Host) -> None:
    ready.add_kernel(NEXT)
    ready.broken[NEXT] = NotFoundError("No headers", resolution="wait")
    result = ready.apply()
    assert (result.status.state, result.status.exit_code) == ("next-kernel-not-ready", 3)
    assert _slot(ready, NEXT).state == "missing"
    ready.broken.clear()
    assert ready.kinds() == [f"prepare {NEXT}"]
    assert ready.apply().status.state == "ready"


def test_a_build_that_fails_for_another_reason_is_tried_again_after_a_pause(ready: Host) -> None:
    ready.add_kernel(NEXT)
    ready.broken[NEXT] = BuildError("no network", resolution="r", details="d")
    ready.apply()
    assert ready.kinds() == []
    failure = load_state(ready.layout).of(NEXT).failure
    assert failure is not None
    assert not failure.final
    assert not failure.holds(now=failure.time + 3600)
    # A clock that was set back makes nobody wait.
    assert not failure.holds(now=failure.time - 1)


def test_a_driver_that_fails_does_not_keep_others_waiting(host: Host) -> None:
    host.configure(f"[drivers.{DRIVER}]\n[drivers.other]\n")
    host.broken["other"] = ProvisionError("it failed")
    first, second = host.apply().status.drivers
    assert (first.state, first.is_ready) == ("ready", True)
    assert (second.state, second.is_ready) == ("failed", False)


def test_a_corrupted_module_is_found_and_made_anew(ready: Host) -> None:
    ready.module().write_bytes(b"broken")
    kinds = ready.kinds()
    assert kinds[0] == f"prepare {KERNEL}"
    assert any("bytes" in note for note in ready.notes)
    assert ready.kinds() == []


def test_a_touched_but_whole_artifact_is_compared_once(ready: Host) -> None:
    before = load_state(ready.layout).of(KERNEL).stamp
    path = ready.module()
    path.write_bytes(path.read_bytes())
    assert ready.kinds() == []
    after = load_state(ready.layout).of(KERNEL).stamp
    assert before != after
    assert ready.kinds() == []
    assert load_state(ready.layout).of(KERNEL).stamp == after


def test_a_wiped_store_is_filled_again(ready: Host) -> None:
    shutil.rmtree(ready.layout.folder)
    ready.newest = OLD
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


def test_a_full_disk_is_a_failure_that_passes(host: Host) -> None:
    host.broken[KERNEL] = ProvisionError("The disk is full.", resolution="Make room")
    result = host.apply()
    assert (result.status.state, result.status.exit_code) == ("failed", 1)
    host.broken.clear()
    assert host.kinds()[0] == f"prepare {KERNEL}"


def test_what_cannot_be_written_down_is_told_all_the_same(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store_state(*_given: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(execute, "store_state", store_state)
    host.broken[KERNEL] = ProvisionError("The disk is full.", resolution="Make room")
    result = host.apply()
    assert (result.status.state, result.status.exit_code) == ("failed", 1)
    assert any("can't be remembered" in note for note in host.notes)
    host.broken.clear()
    result = host.apply()
    assert result.outcomes[0].error is not None
    assert (result.status.state, result.status.exit_code) == ("failed", 1)


def test_an_engine_that_is_restarted_is_waited_for(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[ProvisionError | FakeEngine] = [ProvisionError("no engine"), FakeEngine()]
    lost = [EngineLostError("The engine stopped.")]

    def open_engine(_settings: object) -> FakeEngine:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, ProvisionError):
            raise answer
        return answer

    def obtain(*given: Any, **more: Any) -> Obtained:  # noqa: ANN401 - handed on
        if lost:
            raise lost.pop()
        return host.obtain(*given, **more)

    monkeypatch.setattr(execute, "open_engine", open_engine)
    monkeypatch.setattr(execute, "obtain", obtain)
    monkeypatch.setattr(execute, "_RECONNECT_SECONDS", 0.0)
    assert host.apply().status.state == "ready"
    assert any("Waiting until it is back" in note for note in host.notes)


def test_an_engine_that_does_not_come_back_is_a_failure_that_passes(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_given: object, **_more: object) -> Obtained:
        raise EngineLostError("The engine stopped.", resolution="start it")

    def no_engine(_settings: object) -> FakeEngine:
        raise NotFoundError("no engine")

    monkeypatch.setattr(execute, "open_engine", no_engine)
    monkeypatch.setattr(execute, "obtain", lost)
    monkeypatch.setattr(execute, "_RECONNECT_SECONDS", 0.0)
    slot = _slot(host)
    assert (slot.state, slot.reason, slot.resolution) == (
        "failed",
        "The engine stopped.",
        "start it",
    )
    monkeypatch.setattr(execute, "obtain", host.obtain)
    assert host.apply().status.state == "ready"


def test_modules_that_do_not_load_give_way_to_those_that_did(ready: Host) -> None:
    _ask_for(ready, NEW)
    ready.kernel.refused[DRIVER] = ("Invalid argument", "demo: no")
    result = ready.apply()
    kinds = [o.action.kind for o in result.outcomes]
    assert kinds == ["prepare", "unload", "activate", "load", "activate", "load"]
    assert ready.current() == OLD
    ready.kernel.refused.clear()
    assert ready.kinds() == [f"load {KERNEL}"]
    result = ready.apply()
    assert (result.outcomes, result.status.state) == ((), "failed")
    assert result.status.is_ready


def test_a_rollback_brings_back_modules_and_user_space(ready: Host) -> None:
    first = ready.layout.current.readlink().name
    _ask_for(ready, NEW)
    ready.apply()
    second = ready.layout.current.readlink().name
    assert would_roll_back(ready.root, DRIVER) == (second, first)
    result = rollback(ready.root, ready.desired(), DRIVER, progress=ready.hear)
    assert [o.action.kind for o in result.outcomes] == ["unload", "activate", "load"]
    assert ready.current() == OLD
    assert ready.kinds() == []
    assert _slot(ready).rejected == (second,)
    assert ready.kinds(retry=True)[0] == f"prepare {KERNEL}"
    assert ready.current() == NEW


def test_a_rejected_artifact_is_not_taken_again_when_the_other_is_lost(ready: Host) -> None:
    _ask_for(ready, NEW)
    ready.apply()
    rollback(ready.root, ready.desired(), DRIVER)
    shutil.rmtree(ready.layout.current.resolve())
    slot = _slot(ready)
    assert slot.failure is not None
    assert slot.failure.reason == "rejected"
    assert "--retry" in (slot.resolution or "")


def test_there_may_be_nothing_to_roll_back_to(ready: Host) -> None:
    with pytest.raises(NotFoundError, match="no other artifact"):
        would_roll_back(ready.root, DRIVER)
    with pytest.raises(NotFoundError, match="has no artifact"):
        would_roll_back(ready.root, "other")


def test_a_boot_takes_what_there_is_without_asking_anybody(ready: Host) -> None:
    ready.add_kernel(NEXT)
    ready.apply()
    ready.reboot(NEXT)
    resolved = len(ready.wanted)
    result = boot(ready.root)
    assert [o.action.kind for o in result.outcomes] == ["activate", "load"]
    assert len(ready.wanted) == resolved
    assert ready.layout.current.resolve() == ready.layout.kernel_link(NEXT).resolve()


def test_a_boot_goes_back_to_the_artifact_before_a_damaged_one(ready: Host) -> None:
    _ask_for(ready, NEW)
    ready.apply()
    data = bytearray(ready.module().read_bytes())
    data[-1] ^= 1
    ready.module().write_bytes(bytes(data))
    ready.reboot()
    boot(ready.root, progress=ready.hear)
    assert ready.current() == OLD
    assert ready.kinds()[0] == f"prepare {KERNEL}"
    assert ready.current() == NEW


def test_mistakes_in_the_configuration_cost_no_driver_at_a_boot(ready: Host) -> None:
    ready.reboot()
    ready.configure("[drivers\n")
    with pytest.raises(ConfigError):
        boot(ready.root)
    assert list(ready.kernel.loaded) == [DRIVER]
    (ready.root / "var/lib/provision/.desired.json").unlink(missing_ok=True)
    ready.reboot()
    with pytest.raises(ConfigError):
        boot(ready.root)
    assert list(ready.kernel.loaded) == [DRIVER]


def test_a_driver_that_is_not_named_any_more_is_unloaded_and_goes(ready: Host) -> None:
    ready.configure("[policy]\nkeep = 0\n")
    assert ready.kinds() == [f"unload {KERNEL}", f"retire {KERNEL}"]
    assert ready.kernel.loaded == {}
    assert not ready.layout.current.is_symlink()
    assert not ready.layout.vendor_config.exists()
    assert ready.kinds() == []


def test_without_a_file_nothing_goes(ready: Host) -> None:
    (ready.root / "etc/provision/provision.toml").unlink()
    assert ready.kinds() == []
    assert ready.layout.current.is_symlink()


def test_others_can_read_what_goes_on_while_it_does(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def obtain(*given: Any, **more: Any) -> Obtained:  # noqa: ANN401 - handed on
        seen.append(json.loads((host.root / "run/provision/status.json").read_text()))
        return host.obtain(*given, **more)

    monkeypatch.setattr(execute, "obtain", obtain)
    host.apply()
    assert seen[0]["state"] == "pending"
    assert seen[0]["planned"][0].startswith(f"make the artifact of {DRIVER}")


def test_the_status_is_there_for_others_to_read(ready: Host) -> None:
    folder = ready.root / "var/lib/prometheus/node-exporter"
    folder.mkdir(parents=True)
    ready.apply()
    document = json.loads((ready.root / "run/provision/status.json").read_text())
    assert document["state"] == "ready"
    assert f'provision_driver_ready{{driver="{DRIVER}"' in (folder / "provision.prom").read_text()
