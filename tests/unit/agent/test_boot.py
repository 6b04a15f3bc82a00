"""What a boot and a rollback put to use, with nothing but the store."""

from __future__ import annotations

import shutil
import time

import pytest

from kit.artifact import KERNEL
from kit.host_tree import DRIVER, NEXT
from provision.agent.rollback import rollback, would_roll_back
from provision.agent.run import boot
from provision.kmod.loader import LOADER
from provision.kmod.verify import files_fingerprint, stored_manifest
from provision.progress import listening
from provision.store.state import load_state, store_state
from unit.agent.host import NEWEST, OLDER, Host


def _three_versions(host: Host) -> list[str]:
    """Have three artifacts for the running kernel, and the newest in use; oldest first."""
    used = [host.layout.current.readlink().name]
    for version in (NEWEST, "3.0"):
        host.configure(f'[drivers.{DRIVER}]\nversion = "{version}"\n[policy]\nkeep = 3\n')
        host.apply()
        used.append(host.layout.current.readlink().name)
    return used


def test_a_rollback_that_was_killed_is_completed_by_the_next_one(ready: Host) -> None:
    _first, second, third = _three_versions(ready)

    def killed(_event: object) -> None:
        if ready.layout.kernel_link(KERNEL).readlink().name == second:
            raise KeyboardInterrupt

    with listening(killed), pytest.raises(KeyboardInterrupt):
        rollback(ready.root, ready.desired(), DRIVER)
    assert ready.layout.current.readlink().name == third
    assert would_roll_back(ready.root, ready.desired(), DRIVER) == (third, second)
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
    ready.boot()
    boot(ready.root)
    assert ready.layout.current.readlink().name == second
    # It is in use now, and may be gone back from.
    assert would_roll_back(ready.root, ready.desired(), DRIVER) == (second, first)


def test_a_rejected_artifact_is_not_taken_again_when_the_other_is_lost(ready: Host) -> None:
    ready.ask_for(NEWEST)
    ready.apply()
    rollback(ready.root, ready.desired(), DRIVER)
    shutil.rmtree(ready.layout.current.resolve())
    artifact = ready.artifact()
    assert artifact.failure is not None
    assert artifact.failure.reason == "rejected"
    assert "--retry" in (artifact.resolution or "")


def test_a_boot_takes_up_an_entry_that_was_being_replaced(ready: Host) -> None:
    entry = ready.layout.current.resolve()
    entry.rename(entry.with_name(f".replaced-{entry.name}"))
    ready.boot()
    assert boot(ready.root).status.state == "ready"
    assert ready.layout.current.resolve() == entry


def test_a_boot_says_of_other_kernels_what_later_runs_see(ready: Host) -> None:
    """Damage that only a boot looks for, in what another kernel would load."""
    ready.add_kernel(NEXT)
    ready.apply()
    entry = ready.layout.kernel_link(NEXT).resolve()
    (module,) = entry.rglob("*.ko")
    content = module.read_bytes()
    module.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    # As a disk damages it: no time of the file changes.
    manifest = stored_manifest(entry)
    assert manifest
    seen = files_fingerprint(entry, manifest)
    store_state(ready.layout, load_state(ready.layout).changed(NEXT, fingerprint=seen))
    # The second has nothing to do, as after the loader of a boot.
    boot(ready.root)
    (driver,) = boot(ready.root).status.drivers
    at_boot = {artifact.release: artifact.state for artifact in driver.kernels}
    assert at_boot[NEXT] == ready.artifact(NEXT).state


def test_each_kernel_finds_a_loader_beside_its_modules(ready: Host) -> None:
    ready.add_kernel(NEXT)
    ready.apply()
    loaders = {k: ready.layout.kernel_link(k).resolve() / LOADER for k in (KERNEL, NEXT)}
    for release, path in loaders.items():
        text = path.read_text()
        assert f"kernel={release}\n" in text
        assert f"entry=/var/lib/provision/{DRIVER}/{path.parent.name}\n" in text
    # As an older provision has left it; and for other parameters.
    loaders[NEXT].unlink()
    options = f"[drivers.{DRIVER}]\n[drivers.{DRIVER}.options.{DRIVER}]\ncount = 2\n"
    ready.configure(options)
    assert ready.kinds() == []
    assert all("count=2" in path.read_text() for path in loaders.values())


_MAGIC = "demo: version magic 'a' should be 'b'"


@pytest.mark.parametrize(
    ("said", "logged", "is_rejected"),
    [
        ("Exec format error", _MAGIC, True),
        ("Key was rejected by service", "", False),
    ],
)
def test_only_what_is_wrong_with_an_artifact_rejects_it(
    ready: Host, monkeypatch: pytest.MonkeyPatch, said: str, logged: str, *, is_rejected: bool
) -> None:
    ready.use()
    ready.ask_for(NEWEST)
    ready.apply()
    failing = ready.layout.kernel_link(KERNEL).readlink().name
    ready.refuse(f"{DRIVER}-{NEWEST}", said, logged)
    ready.boot()
    boot(ready.root)
    # The driver serves, whatever it was.
    assert (ready.current(), list(ready.loaded())) == (OLDER, [DRIVER])
    assert load_state(ready.layout).of(KERNEL).rejected == ((failing,) if is_rejected else ())
    # What works is not taken out at once for what has just failed.
    assert ready.kinds() == []
    assert ready.apply().status.state == "failed"
    ready.accept()
    later = time.time() + 24 * 3600
    monkeypatch.setattr("time.time", lambda: later)
    ready.apply()
    assert ready.current() == (OLDER if is_rejected else NEWEST)
    assert ready.apply().status.state == ("failed" if is_rejected else "ready")


def test_each_failure_to_load_makes_the_pause_longer_until_one_succeeds(
    ready: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.refuse(f"{DRIVER}-{NEWEST}", "Device or resource busy", "")
    ready.ask_for(NEWEST)
    ready.apply()
    for attempts in (2, 3):
        later = time.time() + 24 * 3600
        monkeypatch.setattr("time.time", lambda later=later: later)
        ready.apply()
        failure = load_state(ready.layout).of(KERNEL).failure
        assert failure is not None
        assert failure.attempts == attempts
    assert ready.current() == OLDER
