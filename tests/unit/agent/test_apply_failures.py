"""What a failure costs: nothing that served before, and it is tried again when that may help."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.artifact import KERNEL, write
from kit.host_tree import DRIVER, NEXT
from provision.build.output import BuildError, SourceError
from provision.build.package_store import PackageGoneError
from provision.errors import NotFoundError, ProvisionError
from provision.pin import ClosurePackage, Pin
from provision.store.obtain import Stored
from provision.store.state import load_state
from unit.agent.host import NEWEST, OLDER, Host
from unit.recipes import RECIPE


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
    ready.newest = OLDER
    assert ready.kinds(update=True, retry=True) == [f"prepare {KERNEL}"]
    assert ready.apply().status.state == "ready"


def test_a_mirrors_password_is_not_written_down(host: Host) -> None:
    """Everyone may read the status and what is remembered; the journal has the same texts."""
    address = "https://me:s3cr@et@mirror.example/debian"
    host.broken[KERNEL] = NotFoundError(
        f"'{address}/InRelease' does not exist.", resolution=f"See {address}", details=address
    )
    result = host.apply()
    described = str(result.outcomes[0].error.__dict__)
    written = [path.read_text() for path in host.root.rglob("*.json")]
    assert any("mirror.example" in text for text in written)
    assert not [text for text in [described, *written] if "cr@et" in text or "s3cr" in text]


@pytest.mark.parametrize("gone", ["d" * 64, "e" * 64])
def test_packages_that_a_mirror_has_dropped_are_solved_for_again(host: Host, gone: str) -> None:
    package = ClosurePackage(
        name="gcc-12",
        version="12.2.0-14",
        arch="amd64",
        sha256="d" * 64,
        size=1,
        repository="main",
        location="gcc-12.deb",
    )

    def build(settings: object, pin: Pin, **more: bool) -> Stored:
        if pin.closure:
            raise PackageGoneError("no address has it", sha256=gone, resolution="", details=None)
        return host.build(settings, pin, **more)

    host.closure = (package,)
    host.builds = build
    result = host.apply()
    # The driver's own source is no package of the closure: nothing else is solved.
    is_package = gone == package.sha256
    assert (result.outcomes[0].error is None) == is_package
    assert [wanted.refresh for wanted in host.wanted[:2]] == (
        [False, True] if is_package else [False]
    )


def _compile_error() -> BuildError:
    return BuildError(
        "it does not compile",
        source_errors=[SourceError(file="demo.c", line=1, text="no")],
        log=Path("/var/cache/provision/logs/demo.log"),
        resolution="patch it",
        details="demo.c:1: error: no",
    )


def test_a_build_that_fails_for_the_next_kernel_costs_nothing_now(ready: Host) -> None:
    ready.add_kernel(NEXT)
    ready.broken[NEXT] = _compile_error()
    result = ready.apply()
    assert (result.status.state, result.status.exit_code) == ("next-kernel-not-ready", 1)
    assert result.status.is_ready
    artifact = ready.artifact(NEXT)
    assert (artifact.state, artifact.reason, artifact.resolution) == (
        "failed",
        "it does not compile",
        "patch it",
    )
    assert artifact.failure is not None
    assert (artifact.failure.reason, artifact.failure.details) == ("compile", "demo.c:1: error: no")
    assert artifact.failure.log == "/var/cache/provision/logs/demo.log"
    assert ready.kinds() == []
    assert ready.kinds(retry=True) == [f"prepare {NEXT}"]
    ready.broken.clear()
    assert ready.kinds() == []
    assert ready.kinds(retry=True) == [f"prepare {NEXT}"]
    assert ready.apply().status.state == "ready"


@pytest.mark.parametrize(
    ("registry", "build", "is_final"),
    [(True, "fallback", False), (True, "always", True), (False, "fallback", True)],
)
def test_what_does_not_compile_here_is_looked_for_again_where_others_push(
    host: Host, build: str, *, registry: bool, is_final: bool
) -> None:
    folders = '[registry]\nfolders = ["/none"]\n[trust]\ninsecure = true\n' if registry else ""
    host.configure(f'[drivers.{DRIVER}]\n[policy]\nbuild = "{build}"\n{folders}')
    write(host.root / f"srv/{DRIVER}/driver.toml", RECIPE.replace("made-up", DRIVER).encode())
    write(host.root / f"srv/{DRIVER}/patches/fix.patch", b"--- a\n+++ b\n")
    text = (host.root / "etc/provision/provision.toml").read_text()
    host.configure(f'catalogue = ["/srv"]\n{text}')
    host.broken[KERNEL] = _compile_error()
    assert host.apply().status.state == "failed"
    failure = load_state(host.layout).of(KERNEL).failure
    assert failure is not None
    assert (failure.reason, failure.final) == ("compile", is_final)
    # Not by each run, as a compiler takes its time.
    assert failure.holds(now=failure.time + 60)
    assert failure.holds(now=failure.time + 7 * 3600) is is_final


def _upgrade(host: Host) -> None:
    write(host.root / "etc/os-release", b'ID=debian\nVERSION_ID="13"\n')


def _add_a_patch(host: Host) -> None:
    write(host.root / f"srv/{DRIVER}/patches/fix.patch", b"+")
    host.configure(f'catalogue = ["/srv"]\n[drivers.{DRIVER}]\n')


@pytest.mark.parametrize(
    ("change", "failure", "state", "code"),
    [
        (_upgrade, NotFoundError("No headers", resolution="wait"), "ready", 0),
        (_add_a_patch, NotFoundError("No headers", resolution="wait"), "ready", 0),
        (_upgrade, _compile_error(), "failed", 1),
        # This was asked for.
        (lambda h: h.ask_for("9.9"), NotFoundError("No 9.9", resolution="ask"), "missing", 3),
    ],
)
def test_a_driver_that_works_is_not_missing_because_its_surroundings_changed(
    ready: Host, change: Callable[[Host], None], failure: ProvisionError, state: str, code: int
) -> None:
    change(ready)
    ready.broken[DRIVER] = failure
    for is_used in (False, True):
        if is_used:
            ready.use()
        result = ready.apply()
        assert (result.status.state, result.status.exit_code) == (state, code)
        (artifact,) = result.status.drivers[0].kernels
        assert artifact.is_ready
        # It says what could not be had, and what to do about it.
        assert failure.message in (artifact.reason or "")
        assert artifact.resolution == failure.resolution
    ready.boot()
    assert ready.apply().status.state == state
    assert ready.loaded()
    ready.broken.clear()
    ready.apply(retry=True)
    assert ready.artifact().reason is None


def test_a_module_that_someone_else_has_loaded_is_replaced(host: Host) -> None:
    host.have(DRIVER, version=OLDER)
    assert host.apply().status.state == "ready"
    assert (host.root / f"sys/module/{DRIVER}/version").read_text().strip() == NEWEST


def test_a_build_that_fails_for_another_reason_is_tried_again(ready: Host) -> None:
    ready.add_kernel(NEXT)
    ready.broken[NEXT] = BuildError("no network", resolution="r", details="d")
    ready.apply()
    assert ready.kinds() == []
    failure = load_state(ready.layout).of(NEXT).failure
    assert failure is not None
    assert not failure.final


def test_a_failure_to_record_is_reported_all_the_same(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if "state.json" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    host.broken[KERNEL] = ProvisionError("The disk is full.", resolution="Make room")
    result = host.apply()
    assert (result.status.state, result.status.exit_code) == ("failed", 1)
    assert any("can't be recorded" in note for note in host.notes)
    host.broken.clear()
    result = host.apply()
    assert result.outcomes[0].error is not None
    assert (result.status.state, result.status.exit_code) == ("failed", 1)
