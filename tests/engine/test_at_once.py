"""Two commands at once on one host, each a process of its own: neither sees half of the other.

What is built is made up (`engine.paused`), so no engine is needed; the locks are the real ones.
"""

from __future__ import annotations

import json
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.paused import DRIVER, VERSIONS, PausedCommand
from kit.artifact import KERNEL, make_pin, write
from provision.kmod.verify import verify_artifact
from provision.store.entries import linked_kernels
from provision.store.layout import Layout
from provision.store.state import load_state

NEXT = "6.1.0-56-amd64"
OLD, NEW, NEWEST = VERSIONS


@dataclass
class _Host:
    """A host below a folder, and the commands that were started on it."""

    folder: Path
    number: int = 0

    @property
    def root(self) -> Path:
        return self.folder / "host"

    @property
    def layout(self) -> Layout:
        return Layout(self.root, DRIVER)

    def want(self, version: str, *, keep: int = 1) -> None:
        text = f'[drivers.{DRIVER}]\nversion = "{version}"\n[policy]\nkeep = {keep}\n'
        write(self.root / "etc/provision/provision.toml", text.encode())

    def start(self, *words: str, at: str = "") -> PausedCommand:
        self.number += 1
        folder = self.folder / f"{self.number}-{words[0]}"
        return PausedCommand.start(folder, *words, "--root", str(self.root), at=at)

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        command = self.start(*words)
        assert command.ends() in codes, command.said
        return command.said

    def uses(self) -> str:
        """The version in use, whose artifact is whole."""
        entry = self.layout.current.resolve(strict=True)
        report = verify_artifact(entry)
        assert report.findings == ()
        assert report.manifest is not None
        version = report.manifest.pin.driver.version
        assert f'"version": "{version}"' in self.layout.vendor_config.read_text()
        return version

    def check(self) -> None:
        """All that has a name is whole, and nothing half done is left."""
        self.uses()
        for digest in linked_kernels(self.layout).values():
            assert verify_artifact(self.layout.entry(digest)).findings == ()
        assert load_state(self.layout).problems == ()
        store = self.root / "var/lib/provision"
        hidden = [p for p in store.rglob(".*") if p.name not in {".lock", ".provision.toml"}]
        assert hidden == []

    @property
    def status_file(self) -> Path:
        return self.root / "run/provision/status.json"

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.status_file.read_text())
        return document


@pytest.fixture
def host(tmp_path: Path) -> _Host:
    """A host that uses the old version, and has used no other."""
    host = _Host(tmp_path)
    write(host.root / "etc/os-release", b'ID=debian\nVERSION_ID="12"\n')
    write(host.root / f"lib/modules/{KERNEL}/modules.dep", b"")
    write(host.root / "proc/sys/kernel/osrelease", f"{KERNEL}\n".encode())
    host.want(OLD)
    host.run("apply")
    assert host.uses() == OLD
    return host


def _waits_or_ends(command: PausedCommand) -> None:
    command.until(lambda: "waiting" in command.said)


def test_a_rollback_does_not_wait_for_a_build_and_outlives_it(host: _Host) -> None:
    host.want(NEW)
    host.run("apply")
    host.want(NEWEST)
    building = host.start("apply", at="build")
    building.reaches("build")
    assert host.run("rollback", DRIVER)
    assert host.uses() == OLD
    # Others go on too: what is there is looked at, cleaned and loaded.
    host.run("status")
    host.run("gc")
    # It is not what provision.toml asks for.
    host.run("install", make_pin(version=NEW).image, codes=(2,))
    host.run("rollback", DRIVER, "--dry-run", codes=(0, 3))
    assert building.process.poll() is None
    building.go_on("build")
    assert building.ends() == 0, building.said
    assert "rolled back meanwhile" in building.said
    host.run("apply")
    assert host.uses() == OLD
    host.check()


def test_of_two_agents_at_once_the_second_waits_and_finds_the_work_done(host: _Host) -> None:
    host.want(NEW)
    first = host.start("apply", at="build")
    first.reaches("build")
    second = host.start("apply")
    _waits_or_ends(second)
    assert second.process.poll() is None, second.said
    first.go_on("build")
    assert (first.ends(), second.ends()) == (0, 0), second.said
    assert "Nothing to do" in second.said
    assert host.uses() == NEW
    host.check()


def test_an_install_does_not_sweep_what_an_agent_is_writing(host: _Host) -> None:
    host.want(NEW)
    agent = host.start("apply", at="state")
    agent.reaches("state")
    install = host.start("install", make_pin(version=NEW).image)
    _waits_or_ends(install)
    agent.go_on("state")
    assert agent.ends() == 0, agent.said
    assert install.ends() == 0, install.said
    host.run("apply")
    assert host.uses() == NEW
    host.check()


def test_no_command_switches_in_the_middle_of_another_ones_switch(host: _Host) -> None:
    """Between what was observed and what is done about it, nothing of it changes."""
    host.want(NEW)
    agent = host.start("apply", at="activate")
    agent.reaches("activate")
    others = [host.start("rollback", DRIVER), host.start("apply", "--boot"), host.start("gc")]
    for other in others:
        _waits_or_ends(other)
    agent.go_on("activate")
    assert agent.ends() == 0, agent.said
    for other in others:
        assert other.ends() == 0, other.said
    current = host.layout.current.readlink().name
    assert linked_kernels(host.layout)[KERNEL] == current
    assert host.uses() == OLD


def test_two_commands_that_end_at_once_both_tell_the_status(host: _Host) -> None:
    # Its time has no fractions of a second, and what would be the same is not written again.
    host.status_file.unlink()
    first = host.start("apply", at="status")
    first.reaches("status")
    second = host.start("apply")
    _waits_or_ends(second)
    first.go_on("status")
    assert (first.ends(), second.ends()) == (0, 0)
    assert "could not be written" not in first.said + second.said
    assert host.status()["state"] == "ready"


def test_of_two_rollbacks_at_once_one_goes_back_and_the_other_says_so(host: _Host) -> None:
    for version in (NEW, NEWEST):
        host.want(version, keep=5)
        host.run("apply")
    first = host.start("rollback", DRIVER, at="reject")
    first.reaches("reject")
    second = host.start("rollback", DRIVER)
    _waits_or_ends(second)
    first.go_on("reject")
    assert (first.ends(), second.ends()) == (0, 4), second.said
    assert "Nothing was done" in second.said
    assert host.uses() == NEW
    host.check()


def test_a_run_that_is_stopped_says_so_in_its_status(host: _Host) -> None:
    host.want(NEW)
    agent = host.start("apply", at="build")
    agent.reaches("build")
    assert host.status()["state"] == "pending"
    agent.process.send_signal(signal.SIGTERM)
    assert agent.ends() == 130, agent.said
    status = host.status()
    assert (status["state"], status["exit_code"]) == ("failed", 130)
    assert status["error"]["message"]
    assert status["drivers"][0]["is_ready"]
    host.run("apply")
    assert host.status()["error"] is None
    assert host.uses() == NEW


def test_whatever_runs_at_once_the_host_is_whole(host: _Host) -> None:
    """Several of everything, three at a time, in an order that a seed decides."""
    write(host.root / f"lib/modules/{NEXT}/modules.dep", b"")
    host.want(NEW, keep=0)
    commands = [
        *(("install", make_pin(version=version).image) for version in VERSIONS),
        *(("apply", "--retry"), ("apply", "--boot"), ("rollback", DRIVER)),
        *(("gc",), ("apply", "--kernel", "6.1.0-99-amd64"), ("status",)),
    ] * 2
    random.Random(5).shuffle(commands)  # noqa: S311 - an order, not a secret
    started = list(enumerate(commands))

    def run(one: tuple[int, tuple[str, ...]]) -> PausedCommand:
        number, words = one
        held = PausedCommand.start(host.folder / f"x{number}", *words, "--root", str(host.root))
        held.ends()
        return held

    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(run, started))
    for command in done:
        # 2: not what provision.toml asks for; 3: nothing to go back to; 4: another was first.
        assert command.process.returncode in {0, 2, 3, 4}, command.said
        assert "Traceback" not in command.said
    host.run("apply")
    host.run("gc")
    assert "Nothing to do" in host.run("apply")
    host.check()


_AT_NIGHT = (pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))


@pytest.mark.parametrize("seed", [0, *_AT_NIGHT])
def test_whatever_is_killed_the_next_run_repairs(host: _Host, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a moment, not a secret
    host.want(NEW, keep=0)
    words = [("apply", "--retry"), ("install", make_pin(version=NEWEST).image), ("gc",)]
    for number in range(4):
        host.want(chance.choice(VERSIONS), keep=0)
        for command in [host.start(*command) for command in words]:
            command.is_killed(after_s=chance.uniform(0.3, 1.5))
        # Whatever has its name is whole at any time: a boot could follow now.
        for digest in [host.layout.current.readlink().name, *linked_kernels(host.layout).values()]:
            assert verify_artifact(host.layout.entry(digest)).findings == (), number
    host.want(NEW, keep=0)
    host.run("apply", "--retry")
    host.run("gc")
    assert "Nothing to do" in host.run("apply")
    assert host.uses() == NEW
    host.check()
