"""What a boot and a rollback put to use, with nothing but the store."""

from __future__ import annotations

import shutil

import pytest

from provision.agent.boot import boot
from provision.agent.rollback import rollback, would_roll_back
from provision.errors import ConfigError, NotFoundError
from unit.agent.host import DRIVER, NEWEST, NEXT, OLDER, Host
from unit.kmod.artifact import KERNEL


def test_a_rollback_brings_back_modules_and_user_space(ready: Host) -> None:
    first = ready.layout.current.readlink().name
    ready.ask_for(NEWEST)
    ready.apply()
    second = ready.layout.current.readlink().name
    assert would_roll_back(ready.root, DRIVER) == (second, first)
    result = rollback(ready.root, ready.desired(), DRIVER, progress=ready.hear)
    assert [o.action.kind for o in result.outcomes] == ["unload", "activate", "load"]
    assert ready.current() == OLDER
    assert ready.kinds() == []
    assert ready.artifact().rejected == (second,)
    assert ready.kinds(retry=True)[0] == f"prepare {KERNEL}"
    assert ready.current() == NEWEST


def _three_versions(host: Host) -> list[str]:
    """Have three artifacts for the running kernel, and the newest in use; oldest first."""
    host.configure(f"[drivers.{DRIVER}]\n[policy]\nkeep = 3\n")
    used = [host.layout.current.readlink().name]
    for version in (NEWEST, "3.0"):
        host.configure(f'[drivers.{DRIVER}]\nversion = "{version}"\n[policy]\nkeep = 3\n')
        host.apply()
        used.append(host.layout.current.readlink().name)
    return used


def test_a_rollback_that_was_killed_is_completed_by_the_next_one(
    ready: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    _first, second, third = _three_versions(ready)
    with monkeypatch.context() as killed:
        killed.setattr("provision.agent.rollback.apply", _raise_killed)
        with pytest.raises(KeyboardInterrupt):
            rollback(ready.root, ready.desired(), DRIVER)
    assert ready.layout.current.readlink().name == third
    assert would_roll_back(ready.root, DRIVER) == (third, second)
    rollback(ready.root, ready.desired(), DRIVER)
    assert ready.layout.current.readlink().name == second
    assert ready.artifact().rejected == (third,)


def test_a_rollback_that_waits_for_the_boot_does_not_go_back_further(ready: Host) -> None:
    first, second, third = _three_versions(ready)
    ready.use()
    for _ in range(2):
        rollback(ready.root, ready.desired(), DRIVER)
        assert ready.layout.current.readlink().name == third
        assert ready.layout.kernel_link(KERNEL).readlink().name == second
    ready.reboot()
    boot(ready.root)
    assert ready.layout.current.readlink().name == second
    # It is in use now, and may be gone back from.
    assert would_roll_back(ready.root, DRIVER) == (second, first)


def _raise_killed(*_args: object, **_kwargs: object) -> None:
    raise KeyboardInterrupt


def test_a_rejected_artifact_is_not_taken_again_when_the_other_is_lost(ready: Host) -> None:
    ready.ask_for(NEWEST)
    ready.apply()
    rollback(ready.root, ready.desired(), DRIVER)
    shutil.rmtree(ready.layout.current.resolve())
    artifact = ready.artifact()
    assert artifact.failure is not None
    assert artifact.failure.reason == "rejected"
    assert "--retry" in (artifact.resolution or "")


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
    ready.ask_for(NEWEST)
    ready.apply()
    data = bytearray(ready.module().read_bytes())
    data[-1] ^= 1
    ready.module().write_bytes(bytes(data))
    ready.reboot()
    boot(ready.root, progress=ready.hear)
    assert ready.current() == OLDER
    assert ready.kinds()[0] == f"prepare {KERNEL}"
    assert ready.current() == NEWEST


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
