"""Updates by the timer: when policy allows them, and what serves while one is built and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.artifact import KERNEL, write
from kit.host_tree import DRIVER
from provision.build.diagnosis import BuildError, SourceError
from provision.store.layout import Layout
from provision.store.obtain import Stored
from unit.agent.host import NEWEST, OLDER, Host
from unit.cli.outcome import Outcome

Call = Callable[..., Outcome]
Build = Callable[..., Stored]


def _allow(host: Host, update: str) -> None:
    host.configure(f'[policy]\nupdate = "{update}"\n[drivers.{DRIVER}]\n')


def _in_use(host: Host) -> tuple[str, str, str]:
    """The version of the user space, of the kernel's link, and of the loaded module."""
    linked = host.layout.kernel_link(KERNEL).resolve() == host.layout.current.resolve()
    loaded = (host.root / f"sys/module/{DRIVER}/version").read_text().strip()
    assert list(host.loaded()) == [DRIVER]
    return host.current(), host.current() if linked else "another", loaded


def _all(version: str) -> tuple[str, str, str]:
    return version, version, version


def _half_built(host: Host) -> Build:
    """A build that fails when part of what it makes lies in the store."""

    def obtain(_settings: object, resolved: Any, **_more: bool) -> Stored:  # noqa: ANN401 - from Host.resolve
        partial = Layout(host.root, DRIVER).folder / f".{resolved.pin.short_digest}.part"
        write(partial / f"lib/modules/{KERNEL}/demo.ko", b"half")
        assert _in_use(host) == _all(OLDER)
        raise BuildError(
            "it does not compile",
            source_errors=[SourceError("demo.c", 1, "no")],
            resolution="patch it",
            details="demo.c:1: error: no",
        )

    return obtain


def _watched(host: Host, seen: list[tuple[str, str, str]]) -> Build:
    """A build that notes what is in use when it begins, and when its artifact is whole."""

    def obtain(settings: object, resolved: object, **more: bool) -> Stored:
        seen.append(_in_use(host))
        obtained = host.build(settings, resolved, **more)
        assert obtained.entry.is_dir()
        seen.append(_in_use(host))
        return obtained

    return obtain


def _timer(call: Call, host: Host, *words: str) -> Outcome:
    """Run what the timer runs, and return how it ended."""
    host.calls()
    return call("apply", "--timer", *words, "--root", host.root)


def test_a_timers_update_that_does_not_build_leaves_what_runs_in_use(
    ready: Host, call: Call
) -> None:
    _allow(ready, "timer")
    ready.builds = _half_built(ready)
    done = _timer(call, ready)
    assert done.code == 1
    assert "it does not compile" in done.out + done.err
    assert _in_use(ready) == _all(OLDER)
    # It was not even taken out and put back.
    assert not ready.calls()
    # The next run, of a boot too, has the version before.
    assert call("apply", "--boot", "--root", ready.root).code == 0
    assert _in_use(ready) == _all(OLDER)


def test_a_timers_update_is_switched_to_when_it_is_whole(ready: Host, call: Call) -> None:
    _allow(ready, "timer")
    ready.builds = _half_built(ready)
    _timer(call, ready)
    seen: list[tuple[str, str, str]] = []
    ready.builds = _watched(ready, seen)
    assert _timer(call, ready, "--retry").code == 0
    assert seen == [_all(OLDER), _all(OLDER)]
    assert [call.split()[0] for call in ready.calls()] == ["rmmod", "modprobe"]
    assert _in_use(ready) == _all(NEWEST)
    # What serves is whole: that of the version before it is what a rollback finds.
    assert (ready.layout.previous / "driver/manifest.json").is_file()


def test_a_timers_update_of_a_driver_in_use_waits_for_a_reboot(ready: Host, call: Call) -> None:
    _allow(ready, "timer")
    ready.use()
    assert _timer(call, ready).code == 4
    current, _, loaded = _in_use(ready)
    assert (current, loaded) == (OLDER, OLDER)
    ready.boot()
    assert call("apply", "--boot", "--root", ready.root).code == 0
    assert _in_use(ready) == _all(NEWEST)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer's run collects garbage in caches, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
