"""Long programs and companions, without starting any: what would be started, and how it ends."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, ClassVar, Self

import pytest

from provision.errors import NotFoundError, ProvisionError
from provision.run import beside, stream

_PID = 4711


class Child:
    """Stands in for ``subprocess.Popen``: what it prints comes through a real pipe."""

    said: bytes
    is_open: bool
    stuck: bool
    status: int
    pid = _PID
    stderr = stdin = None
    started: ClassVar[list[str]]
    waits: ClassVar[list[float]]
    pipes: ClassVar[list[int]]

    @classmethod
    def reset(cls) -> None:
        cls.said, cls.is_open, cls.stuck, cls.status = b"one\ntwo\n", False, False, 0
        cls.started, cls.waits, cls.pipes = [], [], []

    def __init__(self, argv: list[str], **options: object) -> None:
        assert "shell" not in options
        assert options["start_new_session"] is True
        type(self).started = argv
        reading, writing = os.pipe()
        os.write(writing, self.said)
        if self.is_open:
            self.pipes.append(writing)
        else:
            os.close(writing)
        self.stdout: IO[bytes] = os.fdopen(reading, "rb", buffering=0)

    def wait(self, timeout: float) -> int:
        self.waits.append(timeout)
        if self.stuck:
            raise subprocess.TimeoutExpired("tool", timeout)
        return self.status


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Child]]:
    for name in ("setpriv", "unshare", "tool"):
        path = tmp_path / name
        path.write_text("")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    Child.reset()
    monkeypatch.setattr("provision.run.subprocess.Popen", Child)
    yield Child
    for pipe in Child.pipes:
        os.close(pipe)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The process groups that were killed, and by which signal."""
    groups: list[tuple[int, int]] = []
    monkeypatch.setattr("provision.run.os.killpg", lambda *words: groups.append(words))
    return groups


def test_lines_are_handed_on_as_they_come(child: type[Child], tmp_path: Path) -> None:
    lines: list[str] = []
    stream(["tool", "-x"], why="test it", on_line=lines.append)
    assert lines == ["one", "two"]
    assert child.started[-2:] == [str(tmp_path / "tool"), "-x"]
    assert "--pdeathsig" in child.started
    assert "--kill-child" in child.started


def test_a_failure_has_the_last_lines(child: type[Child]) -> None:
    child.status = 3
    with pytest.raises(ProvisionError, match="'tool' failed with exit status 3 while") as caught:
        stream(["tool"], why="test it", on_line=lambda _line: None)
    assert caught.value.details == "one\ntwo"


@pytest.mark.parametrize(
    ("said", "lines"),
    [(b"", []), (b"a", ["a"]), (b"a\n\nb", ["a", "", "b"]), (b"\xff\n", ["\ufffd"])],
)
def test_what_is_printed_comes_line_by_line(
    child: type[Child], said: bytes, lines: list[str]
) -> None:
    child.said = said
    got: list[str] = []
    stream(["tool"], why="test it", on_line=got.append)
    assert got == lines


@pytest.mark.parametrize(("is_open", "stuck"), [(True, False), (False, True)])
def test_what_goes_on_past_its_limit_is_killed(
    child: type[Child], killed: list[tuple[int, int]], *, is_open: bool, stuck: bool
) -> None:
    child.is_open, child.stuck = is_open, stuck
    lines: list[str] = []
    with pytest.raises(ProvisionError, match=r"did not finish within 0\.05 s") as caught:
        stream(["tool"], why="test it", on_line=lines.append, timeout=0.05)
    assert lines == ["one", "two"]
    assert killed == [(_PID, signal.SIGKILL)]
    assert ("can't be killed" in caught.value.message) == stuck


def test_a_program_that_never_stops_talking_has_a_limit_too(
    child: type[Child], killed: list[tuple[int, int]]
) -> None:
    child.is_open = True

    def more(_line: str) -> None:
        os.write(child.pipes[0], b"and on\n")

    with pytest.raises(ProvisionError, match="did not finish"):
        stream(["tool"], why="test it", on_line=more, timeout=0.05)
    assert killed


def test_when_the_reader_stops_the_program_ends(
    child: type[Child], killed: list[tuple[int, int]]
) -> None:
    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream(["tool"], why="test it", on_line=interrupt)
    assert child.waits
    assert killed == [(_PID, signal.SIGKILL)]


@pytest.mark.usefixtures("child")
def test_a_missing_program_is_named() -> None:
    with pytest.raises(NotFoundError, match="'no-such-tool' was not found"):
        stream(["no-such-tool"], why="test it", on_line=lambda _line: None)


class Companion:
    """Stands in for ``subprocess.Popen`` of a program that ends with its standard input."""

    stdout = stderr = None
    pid = _PID

    def __init__(self, stdin: IO[bytes], *, stuck: bool) -> None:
        self.stdin = stdin
        self.stuck = stuck
        self.waits: list[float] = []
        self.started: list[str] = []
        self.options: dict[str, object] = {}

    def __call__(self, argv: list[str], **options: object) -> Self:
        self.started, self.options = argv, options
        return self

    def wait(self, timeout: float) -> int:
        self.waits.append(timeout)
        if self.stuck:
            raise subprocess.TimeoutExpired("tool", timeout)
        return 0


@pytest.mark.parametrize("stuck", [False, True])
def test_a_companion_runs_as_long_as_the_block(
    child: type[Child],
    killed: list[tuple[int, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    stuck: bool,
) -> None:
    del child
    with (tmp_path / "pipe").open("wb") as stdin:
        made = Companion(stdin, stuck=stuck)
        monkeypatch.setattr("provision.run.subprocess.Popen", made)
        with beside(["tool", "cat"], why="test it"):
            assert made.started == [str(tmp_path / "tool"), "cat"]
            assert made.options["stdin"] == subprocess.PIPE
            assert not stdin.closed
        assert stdin.closed
    # One that doesn't end by itself is killed, and is not waited for without end either.
    assert killed == ([(_PID, signal.SIGKILL)] if stuck else [])
    assert len(made.waits) == (2 if stuck else 1)
    with pytest.raises(NotFoundError), beside(["none"], why="test it"):
        pass
