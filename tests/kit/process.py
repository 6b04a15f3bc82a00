"""The only place of the kit that starts processes, and that waits until something is so."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Completed:
    """How a process ended (a negative status: by that signal) and what it said."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, stdout first."""
        return self.stdout + self.stderr


class CommandFailedError(AssertionError):
    """A command that had to succeed did not; the message has the last lines of both streams."""

    def __init__(self, completed: Completed, said: str = "") -> None:
        """Keep the completed process for a caller that wants its status; `said` is its error."""
        self.completed = completed
        both = (completed.stdout, completed.stderr)
        said = said or "\n".join(line for one in both for line in one.splitlines()[-40:])
        super().__init__(
            f"exit status {completed.returncode}: {shlex.join(completed.argv)}\n{said}"
        )


def run_bytes(
    argv: Sequence[str | Path], *, stdin: bytes, env: Mapping[str, str] | None = None
) -> bytes:
    """Run `argv` to its end with bytes on its standard input; returns its standard output."""
    done = subprocess.run(
        [str(word) for word in argv],
        input=stdin,
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.stdout


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout_s: float = 1800,
    check: bool = True,
    live: bool = False,
) -> Completed:
    """Run `argv` to its end; `env` is added to this process's environment.

    With `live` its standard error is ours (progress on a terminal) instead of captured.
    """
    words = tuple(str(word) for word in argv)
    done = subprocess.run(
        words,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        input=stdin if stdin is not None else "",
        stdout=subprocess.PIPE,
        stderr=None if live else subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    completed = Completed(words, done.returncode, done.stdout, done.stderr or "")
    if check and completed.returncode != 0:
        raise CommandFailedError(completed)
    return completed


def run_here(argv: Sequence[str | Path], *, env: Mapping[str, str]) -> int:
    """Run `argv` to its end with our own streams and nothing but `env`; its status, as in a shell.

    A Ctrl-C at the terminal is for it to handle: we wait until it has.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        status = subprocess.run([str(word) for word in argv], env=env, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status


def start(
    argv: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own, so that a Ctrl-C at the terminal is ours to handle.

    Both streams go to the file `log`.
    """
    with log.open("ab") as stream:
        return subprocess.Popen(
            [str(word) for word in argv],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_for(
    what: str,
    holds: Callable[[], _Found],
    *,
    within_s: float,
    pause_s: float = 0.1,
    or_end_of: subprocess.Popen[bytes] | None = None,
    said: Callable[[], object] = str,
) -> _Found:
    """Wait until `holds()` is true, or a process has ended; what `holds()` returned last."""
    deadline = time.monotonic() + within_s
    while not (found := holds()) and (or_end_of is None or or_end_of.poll() is None):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within_s:.0f} s for {what}\n{said()}".rstrip())
        time.sleep(pause_s)
    return found


class Daemon:
    """A background process that is ready when `ready()` says so, and is stopped by its pid."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        log: Path,
        ready: Callable[[], bool],
        env: Mapping[str, str] | None = None,
        ready_within_s: float = 180,
    ) -> None:
        self.log = log
        self._argv, self._env = argv, env
        self._ready, self._within_s = ready, ready_within_s
        self.start()

    def start(self) -> None:
        """Start it again, when it has ended; as at first."""
        self._process = process = start(self._argv, log=self.log, env=self._env)
        what, within_s = str(self._argv[0]), self._within_s
        with suppress(TimeoutError):
            if wait_for(what, self._ready, within_s=within_s, pause_s=0.05, or_end_of=process):
                return
        why = f"was not ready within {within_s:.0f} s" if self.alive else "ended"
        self.stop()
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"{what} {why}; the end of {self.log}:\n{tail}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End it politely, then by force. Does nothing when it has ended."""
        if not self.alive:
            return
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, at once: what a crash or the OOM killer would do."""
        if self.alive:
            self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def end_tree_of(word: str) -> None:
    """SIGKILL every process that has exactly this word on its command line, and its descendants.

    The word has to be unique, such as a path in a folder of our own. All have ended on return.
    """
    found = [pid for pid in _processes() if word in _command_line(pid)]
    victims = [victim for pid in found for victim in (*_descendants(pid), pid)]
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    what = f"the end of {word}"
    wait_for(what, lambda: not any(map(is_running, victims)), within_s=60, pause_s=0.01)


def is_running(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"  # ended; its parent has not asked for the status yet


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:  # it ended meanwhile
        return []


def _descendants(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return [below for child in children for below in (child, *_descendants(child))]
