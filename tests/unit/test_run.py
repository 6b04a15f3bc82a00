"""The one place that starts programs: what they are given, how they end, and how they are ended."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.artifact import write
from provision import run as running
from provision.errors import NotFoundError, ProvisionError
from provision.run import beside, find_program, run, stream

Start = Callable[..., object]


def _streamed(argv: list[str], *, why: str, timeout: float = 60.0) -> None:
    stream(argv, why=why, on_line=lambda _line: None, timeout=timeout)


BOTH = pytest.mark.parametrize("start", [run, _streamed])


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a program ``tool``; ``stream`` starts it without namespaces, which take root."""
    for name, script in {"setpriv": 'shift 2; exec "$@"', "unshare": 'shift 4; exec "$@"'}.items():
        _script(tmp_path / "bin" / name, script)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path / "bin/tool"


def _script(path: Path, text: str) -> None:
    write(path, f"#!/bin/sh\n{text}\n".encode(), 0o755)


def _is_gone(pids: Path) -> bool:
    """Return whether the processes in a file end; a tree of containers may have no one to reap."""
    end = time.monotonic() + 30
    for pid in pids.read_text().split():
        while True:
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                break
            if state == "Z":
                break
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
    return True


@BOTH
def test_a_missing_program_says_what_it_is_needed_for(tool: Path, start: Start) -> None:
    assert find_program(tool.name) is None
    with pytest.raises(NotFoundError):
        start(["tool"], why="check it")
    _script(tool, "exit 0")
    assert find_program("tool") == str(tool)
    start(["tool"], why="check it")


def test_a_program_gets_words_and_a_small_environment_and_no_terminal(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LANG": "de_DE", "http_proxy": "http://p", "SECRET": "x"}.items():
        monkeypatch.setenv(name, value)
    session = "cut -d' ' -f6 /proc/$$/stat"
    _script(tool, f'echo "$1|$2|$(readlink /proc/$$/fd/0)|$(($({session})-$$))"; env')
    first, *env = run(["tool", Path("/a b"), "$x"], why="test", env={"MORE": "1"}).stdout.split(
        "\n"
    )
    assert first == "/a b|$x|/dev/null|0"
    assert {"LC_ALL=C.UTF-8", "http_proxy=http://p", "MORE=1"} <= set(env)
    assert f"PATH={os.environ['PATH']}:/usr/sbin:/sbin" in env
    assert not [line for line in env if line.startswith(("LANG=", "SECRET="))]


def test_output_is_text_whatever_its_bytes(tool: Path) -> None:
    _script(tool, "cat; printf 'a\\377b'; printf e >&2; exit 1")
    done = run(["tool"], why="test it", stdin=b"in", check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("ina\ufffdb", "e", 1)


@BOTH
def test_a_failure_has_the_last_lines_of_what_it_said(tool: Path, start: Start) -> None:
    _script(tool, "seq 30 >&2; exit 2")
    with pytest.raises(ProvisionError) as caught:
        start(["tool", "-x"], why="test it")
    assert (caught.value.details or "").split() == [str(number) for number in range(11, 31)]


@BOTH
@pytest.mark.parametrize(
    "then",
    # The last leaves a child that holds its pipes.
    ["wait", "exec >&- 2>&-; wait", "while :; do echo on; done", "exit"],
)
def test_what_takes_too_long_is_killed_with_all_that_it_started(
    tool: Path, start: Start, then: str
) -> None:
    pids = tool.with_name("pids")
    _script(tool, f"sleep 300 & echo $$ $! >'{pids}'; {then}")
    with pytest.raises(ProvisionError):
        start(["tool"], why="test it", timeout=2.5)
    assert _is_gone(pids)


@BOTH
@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_what_can_not_be_killed_is_left_behind(
    tool: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that waits for a device."""
    monkeypatch.setattr(running, "_END_S", 0.1)
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    _script(tool, "exec sleep 5")
    with pytest.raises(ProvisionError):
        start(["tool"], why="test it", timeout=0.1)
    gc.collect()


@pytest.mark.parametrize(
    ("said", "lines"),
    [("", []), ("a", ["a"]), ("a\\n\\nb", ["a", "", "b"]), ("\\377\\n", ["\ufffd"])],
)
def test_what_is_printed_comes_line_by_line(tool: Path, said: str, lines: list[str]) -> None:
    _script(tool, f"printf '{said}'")
    got: list[str] = []
    stream(["tool"], why="test it", on_line=got.append)
    assert got == lines


def test_when_the_reader_stops_the_program_ends(tool: Path) -> None:
    pids = tool.with_name("pids")
    _script(tool, f"echo $$ >'{pids}'; echo line; exec sleep 300")

    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream(["tool"], why="test it", on_line=interrupt)
    assert _is_gone(pids)


@pytest.mark.parametrize("ends", ["cat", "exec sleep 300"], ids=["with its input", "not by itself"])
def test_a_companion_runs_as_long_as_the_block(
    tool: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    if ends != "cat":
        monkeypatch.setattr(running, "_END_S", 0.1)
    pids, draft = tool.with_name("pids"), tool.with_name("draft")
    _script(tool, f"echo $$ >'{draft}'; mv '{draft}' '{pids}'; {ends}")
    with beside(["tool"], why="test it"):
        while not pids.exists():
            time.sleep(0.01)
        assert Path(f"/proc/{pids.read_text().strip()}").is_dir()
    assert _is_gone(pids)
    with pytest.raises(NotFoundError), beside(["none"], why="test it"):
        pass


def test_neither_error_nor_log_has_a_secret_of_the_command_line(
    tool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _script(tool, 'echo "can\'t open $1" >&2; exit 1')
    with (
        caplog.at_level(logging.DEBUG, logger="provision"),
        pytest.raises(ProvisionError) as caught,
    ):
        run(["tool", "https://me:hush@host/"], why="test it")
    assert "hush" not in f"{caught.value} {caught.value.details} {caplog.text}"
    assert "https://me:***@host/" in caplog.text


def test_a_program_that_prints_without_end_is_killed(tool: Path) -> None:
    pids = tool.with_name("pids")
    _script(tool, f"echo $$ >'{pids}'; exec cat /dev/zero")
    with pytest.raises(ProvisionError):
        run(["tool"], why="test", most_output=1 << 20)
    assert _is_gone(pids)


@pytest.mark.parametrize("argv", [["tool"], ["sh", "-c", "tool & wait $!"]], ids=["own", "child"])
def test_a_program_gets_no_more_memory_and_files_than_it_may(
    tool: Path, tmp_path: Path, argv: list[str]
) -> None:
    # tail keeps what it has read until a line ends.
    _script(tool, "head -c 200000000 /dev/zero | tail -n 1 | wc -c")
    assert run(argv, why="test", memory=64 << 20, check=False).stdout.strip() == "0"
    assert run(argv, why="test", memory=1 << 30).stdout.strip() == "200000000"
    _script(tool, f"head -c 2000000 /dev/zero >'{tmp_path}/file'")
    assert run(argv, why="test", largest_file=1 << 20, check=False).returncode != 0
    assert (tmp_path / "file").stat().st_size == 1 << 20
    run(argv, why="test")


def test_a_line_without_end_does_not_fill_the_memory(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    _script(tool, "exec head -c 1000000 /dev/zero")
    stream(["tool"], why="test", on_line=lines.append)
    assert max(map(len, lines)) < 200_000
    assert sum(map(len, lines)) == 1_000_000
    monkeypatch.setattr(running, "_MOST_STREAMED", 1 << 20)
    _script(tool, "exec cat /dev/zero")
    with pytest.raises(ProvisionError):
        stream(["tool"], why="test", on_line=lambda _line: None)
