"""The commands load and unload."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from unit.cli.outcome import Outcome
from unit.kmod.artifact import KERNEL, make_artifact, make_pin
from unit.kmod.kernel import Kernel, make_stack, start

Call = Callable[..., Outcome]


@pytest.fixture
def kernel(host: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return start(host, monkeypatch)


def _install(host: Path, *, driver: str = "demo", stack: bool = True) -> Path:
    pin = make_pin(driver=driver)
    folder = host / "var/lib/provision" / driver
    entry = folder / pin.short_digest
    if stack:
        make_stack(entry)
    else:
        make_artifact(entry, pin=pin)
    (folder / "current").symlink_to(pin.short_digest)
    return entry


def test_all_drivers_of_the_store_are_loaded(call: Call, host: Path, kernel: Kernel) -> None:
    entry = _install(host)
    outcome = call("load", "--root", host, "--json")
    (driver,) = outcome.document["drivers"]
    assert outcome.code == 0
    assert driver["modules"][0] == "core"
    assert (driver["changed"], driver["entry"]) == (True, str(entry))
    assert "net" in kernel.loaded
    again = call("load", "demo", "--root", host, "--json")
    assert again.document["drivers"][0]["changed"] is False


def test_a_dry_run_only_says_it(call: Call, host: Path, kernel: Kernel) -> None:
    _install(host)
    outcome = call("load", "--root", host, "--dry-run")
    assert outcome.out.startswith("demo 1.2: would be loaded: core, ")
    assert kernel.calls == []
    call("load", "--root", host)
    kernel.calls.clear()
    outcome = call("unload", "--root", host, "--dry-run", "--json")
    assert outcome.document["drivers"][0]["modules"][-1] == "core"
    assert outcome.document["drivers"][0]["changed"] is False
    assert kernel.calls == []


def test_the_artifact_is_that_of_the_running_kernel(call: Call, host: Path, kernel: Kernel) -> None:
    entry = _install(host)
    other = make_pin(kernel="6.1.0-50-amd64")
    make_artifact(entry.with_name(other.short_digest), pin=other)
    current = entry.with_name("current")
    current.unlink()
    current.symlink_to(other.short_digest)
    outcome = call("load", "demo", "--root", host)
    assert outcome.code == 3
    assert "is for the kernel 6.1.0-50-amd64, and 6.1.0-47-amd64 runs" in outcome.err
    (entry.parent / "kernels").mkdir()
    (entry.parent / "kernels" / KERNEL).symlink_to(f"../{entry.name}")
    assert call("load", "demo", "--root", host).code == 0
    assert "core" in kernel.loaded


def test_a_module_in_use_is_exit_code_4(call: Call, host: Path, kernel: Kernel) -> None:
    _install(host)
    call("load", "--root", host)
    kernel.references["net"] = 1
    kernel.publish()
    outcome = call("unload", "demo", "--root", host, "--json")
    assert outcome.code == 4
    (user,) = outcome.document["error"]["users"]
    assert (user["module"], user["kind"]) == ("net", "kernel")
    assert call("unload", "demo", "--root", host, "--dry-run").code == 4
    kernel.references.clear()
    kernel.publish()
    assert call("unload", "demo", "--root", host).out.startswith("demo 1.2: unloaded: net, extra")


def test_a_damaged_module_is_not_loaded(call: Call, host: Path, kernel: Kernel) -> None:
    entry = _install(host)
    path = entry / f"lib/modules/{KERNEL}/net.ko"
    path.write_bytes(path.read_bytes() + b"x")
    outcome = call("load", "--root", host, "--json")
    assert outcome.code == 1
    assert outcome.document["error"]["findings"][0]["kind"] == "altered"
    assert kernel.calls == []


def test_one_driver_that_fails_does_not_stop_the_others(
    call: Call, host: Path, kernel: Kernel
) -> None:
    _install(host)
    outcome = call("load", "nothing", "demo", "--root", host)
    assert outcome.code == 3
    assert "'nothing' is not installed" in outcome.err
    assert "demo" in outcome.err
    assert "core" in kernel.loaded
    outcome = call("load", "nothing", "nowhere", "--root", host, "--json")
    assert outcome.code == 3
    assert set(outcome.document["error"]["drivers"]) == {"nothing", "nowhere"}


def test_a_broken_link_is_reported(call: Call, host: Path, kernel: Kernel) -> None:
    folder = host / "var/lib/provision/demo"
    folder.mkdir(parents=True)
    (folder / "current").symlink_to("0123456789ab")
    outcome = call("load", "--root", host)
    assert (outcome.code, kernel.calls) == (1, [])
    assert "points to an artifact that is gone" in outcome.err
