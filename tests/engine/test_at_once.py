"""Two commands at once on one host, each a process of its own: neither sees half of the other."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.paused import LIMIT_S
from kit.host_tree import DRIVER, KERNEL, NEXT, HostTree
from kit.process import start, wait_for
from provision.store.entries import linked_kernels
from provision.store.state import load_state

VERSIONS = OLD, NEW, NEWEST = "1.2", "2.0", "3.0"


@dataclass(frozen=True)
class _Command:
    """A command that was started."""

    process: subprocess.Popen[bytes]
    # What it says, and where it reports that it stopped, and waits for leave to go on.
    folder: Path

    @property
    def said(self) -> str:
        return (self.folder / "log").read_text()

    def until(self, reached: Callable[[], object]) -> None:
        """Wait until something is so, or the process has ended."""
        wait_for(
            "a place",
            reached,
            within_s=LIMIT_S,
            pause_s=0.02,
            or_end_of=self.process,
            said=lambda: self.said,
        )

    def stops(self) -> None:
        self.until((self.folder / "reached").exists)
        assert self.process.poll() is None, self.said

    def waits_or_ends(self) -> None:
        self.until(lambda: "waiting" in self.said)

    def goes_on(self, code: int = 0) -> None:
        """Let it go on to its end."""
        (self.folder / "go").touch()
        assert self.process.wait(LIMIT_S) == code, self.said

    def is_killed(self, *, after_s: float) -> None:
        """SIGKILL it when a while has passed, unless it has ended by then."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(after_s)
        self.process.kill()
        self.process.wait()


class _Host(HostTree):
    """A host to which a folder of images offers all versions."""

    def ask_for(self, version: str, *, keep: int = 1) -> None:
        self.want(f"keep = {keep}", version=version)

    def image(self, version: str) -> str:
        return f"oci:{self.root}/srv/images/{DRIVER}:{version}-open-{KERNEL}.debian12"

    def start(self, *words: str, at: str = "") -> _Command:
        """Start a command, which stops at a place of `engine.paused`, if any."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        paused = {"PAUSE_AT": at, "PAUSE_IN": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        argv = [sys.executable, "-m", "engine.paused", *words, "--root", str(self.root)]
        process = start(argv, log=folder / "log", env=self.environment | paused)
        return _Command(process, folder)

    def run(self, *words: str, code: int = 0) -> str:
        command = self.start(*words)
        command.goes_on(code)
        return command.said

    def check(self) -> None:
        """All that has a name is whole, and nothing half done is left."""
        self.uses()
        assert load_state(self.layout).problems == ()
        assert self.leftovers() == []

    @property
    def status_file(self) -> Path:
        return self.root / "run/provision/status.json"

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.status_file.read_text())
        return document


@pytest.fixture
def host(tmp_path: Path) -> _Host:
    """A host that uses the old version, and has used no other."""
    host = _Host.make(tmp_path)
    for version in VERSIONS:
        host.offer(version)
    host.ask_for(OLD)
    host.run("apply")
    assert host.uses() == OLD
    return host


def test_a_rollback_does_not_wait_for_an_artifact_and_outlives_it(host: _Host) -> None:
    host.ask_for(NEW)
    host.run("apply")
    host.ask_for(NEWEST)
    making = host.start("apply", "--retry", at="store_pulled")
    making.stops()
    host.run("rollback", DRIVER)
    assert host.uses() == OLD
    # Others go on too: what is there is looked at, cleaned and loaded.
    host.run("status")
    host.run("gc")
    # It is not what provision.toml asks for.
    host.run("install", host.image(NEW), code=2)
    host.run("rollback", DRIVER, "--dry-run", code=3)
    assert making.process.poll() is None
    making.goes_on()
    assert "rolled back meanwhile" in making.said
    host.run("apply")
    assert host.uses() == OLD
    host.check()


def test_of_two_agents_at_once_the_second_waits_and_finds_the_work_done(host: _Host) -> None:
    host.ask_for(NEW)
    first = host.start("apply", at="store_pulled")
    first.stops()
    second = host.start("apply")
    second.waits_or_ends()
    assert second.process.poll() is None, second.said
    first.goes_on()
    second.goes_on()
    assert "Nothing to do" in second.said
    assert host.uses() == NEW
    host.check()


def test_an_install_does_not_sweep_what_an_agent_is_writing(host: _Host) -> None:
    host.ask_for(NEW)
    agent = host.start("apply", at="state")
    agent.stops()
    install = host.start("install", host.image(NEW))
    install.waits_or_ends()
    agent.goes_on()
    install.goes_on()
    host.run("apply")
    assert host.uses() == NEW
    host.check()


def test_no_command_switches_in_the_middle_of_another_ones_switch(host: _Host) -> None:
    """Between what was observed and what is done about it, nothing of it changes."""
    host.ask_for(NEW)
    agent = host.start("apply", at="activate")
    agent.stops()
    others = [host.start("rollback", DRIVER), host.start("apply", "--boot"), host.start("gc")]
    for other in others:
        other.waits_or_ends()
    for command in (agent, *others):
        command.goes_on()
    current = host.layout.current.readlink().name
    assert linked_kernels(host.layout)[KERNEL] == current
    assert host.uses() == OLD


def test_two_commands_that_end_at_once_both_tell_the_status(host: _Host) -> None:
    # Its time has no fractions of a second, and what would be the same is not written again.
    host.status_file.unlink()
    first = host.start("apply", at="status")
    first.stops()
    second = host.start("apply")
    second.waits_or_ends()
    first.goes_on()
    second.goes_on()
    assert "could not be written" not in first.said + second.said
    assert host.status()["state"] == "ready"


def test_of_two_rollbacks_at_once_one_goes_back_and_the_other_says_so(host: _Host) -> None:
    for version in (NEW, NEWEST):
        host.ask_for(version, keep=5)
        host.run("apply")
    first = host.start("rollback", DRIVER, at="reject")
    first.stops()
    second = host.start("rollback", DRIVER)
    second.waits_or_ends()
    first.goes_on()
    second.goes_on(code=4)
    assert "Nothing was done" in second.said
    assert host.uses() == NEW
    host.check()


def test_a_run_that_is_stopped_says_so_in_its_status(host: _Host) -> None:
    host.ask_for(NEW)
    agent = host.start("apply", at="store_pulled")
    agent.stops()
    assert (host.status()["state"], bool(host.status()["planned"])) == ("pending", True)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(LIMIT_S) == 130, agent.said
    status = host.status()
    assert (status["state"], status["exit_code"]) == ("failed", 130)
    assert status["error"]["message"]
    assert status["drivers"][0]["is_ready"]
    host.run("apply")
    assert host.status()["error"] is None
    assert host.uses() == NEW


def test_whatever_runs_at_once_the_host_is_whole(host: _Host) -> None:
    """Several of everything, three at a time, in an order that a seed decides."""
    host.add_kernel(NEXT)
    for version in VERSIONS:
        host.offer(version, kernel=NEXT)
    host.ask_for(NEW, keep=0)
    commands = [
        *(("install", host.image(version)) for version in VERSIONS),
        *(("apply", "--retry"), ("apply", "--boot"), ("rollback", DRIVER)),
        *(("gc",), ("apply", "--kernel", "6.1.0-99-amd64"), ("status",)),
    ] * 2
    random.Random(5).shuffle(commands)  # noqa: S311 - an order, not a secret

    def run(words: tuple[str, ...]) -> _Command:
        command = host.start(*words)
        command.process.wait(LIMIT_S)
        return command

    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(run, commands))
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
    for _ in range(4):
        host.ask_for(chance.choice(VERSIONS), keep=0)
        for words in (("apply", "--retry"), ("install", host.image(NEWEST)), ("gc",)):
            host.start(*words).is_killed(after_s=chance.uniform(0.3, 1.5))
        # Whatever has its name is whole at any time: a boot could follow now.
        host.check_store()
    host.ask_for(NEW, keep=0)
    host.run("apply", "--retry")
    host.run("gc")
    assert "Nothing to do" in host.run("apply")
    assert host.uses() == NEW
    host.check()
