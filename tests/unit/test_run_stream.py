"""The door's way for long programs, without starting any."""

import subprocess
from pathlib import Path
from typing import Self

import pytest

from provision.errors import NotFoundError, ProvisionError
from provision.run import beside, stream


class Child:
    """Stands in for ``subprocess.Popen``."""

    lines: tuple[str, ...] = ("one\n", "two\n")
    returncode = 0
    started: list[str]
    killed = False

    def __init__(self, argv: list[str], **options: object) -> None:
        assert "shell" not in options
        type(self).started = argv
        self.stdout = iter(self.lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def kill(self) -> None:
        type(self).killed = True


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Child]:
    for name in ("setpriv", "unshare", "tool"):
        path = tmp_path / name
        path.write_text("")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = type("OneChild", (Child,), {})
    monkeypatch.setattr("provision.run.subprocess.Popen", made)
    return made


def test_lines_are_handed_on_as_they_come(child: type[Child], tmp_path: Path) -> None:
    lines: list[str] = []
    stream(["tool", "-x"], why="test it", on_line=lines.append)
    assert lines == ["one", "two"]
    assert child.started[-2:] == [str(tmp_path / "tool"), "-x"]
    assert "--pdeathsig" in child.started
    assert "--kill-child" in child.started


def test_a_failure_has_the_last_lines(child: type[Child]) -> None:
    child.returncode = 3
    with pytest.raises(ProvisionError, match="'tool' failed with exit status 3 while") as caught:
        stream(["tool"], why="test it", on_line=lambda _line: None)
    assert caught.value.details == "one\ntwo"


def test_whoever_stops_listening_ends_it(child: type[Child]) -> None:
    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream(["tool"], why="test it", on_line=interrupt)
    assert child.killed


@pytest.mark.usefixtures("child")
def test_a_missing_program_is_named() -> None:
    with pytest.raises(NotFoundError, match="'no-such-tool' was not found"):
        stream(["no-such-tool"], why="test it", on_line=lambda _line: None)


class Companion:
    """Stands in for ``subprocess.Popen`` of a program that ends with its standard input."""

    started: list[str]
    options: dict[str, object]
    ended = False
    pid = 1

    def __init__(self, argv: list[str], **options: object) -> None:
        type(self).started, type(self).options = argv, options

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        type(self).ended = True


def test_a_companion_runs_as_long_as_the_block(
    child: type[Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del child
    monkeypatch.setattr("provision.run.subprocess.Popen", Companion)
    with beside(["tool", "cat"], why="test it"):
        assert Companion.started == [str(tmp_path / "tool"), "cat"]
        assert Companion.options["stdin"] == subprocess.PIPE
        assert not Companion.ended
    assert Companion.ended
    with pytest.raises(NotFoundError), beside(["none"], why="test it"):
        pass
