"""Command lines in this process, and a host for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kit.host_tree import HostTree
from provision.cli import run
from provision.progress import Event, Note, listening
from unit.cli.outcome import Outcome


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command line."""

    def call(*words: object) -> Outcome:
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """What is reported in this thread from now on."""
    found: list[Event] = []
    with listening(found.append):
        yield found


@pytest.fixture
def notes() -> Iterator[list[str]]:
    """What is remarked in this thread from now on."""
    found: list[str] = []
    with listening(lambda event: found.extend([event.text] if isinstance(event, Note) else [])):
        yield found


@pytest.fixture
def host_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostTree:
    """A host on which nothing is configured; commands run as on it."""
    made = HostTree.make(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def plain_path() -> Iterator[Path]:
    """A folder with a short and plain name, as a socket's and a shell's, and not behind a link."""
    with TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one pulls a plug here, and waiting for the disk is most of the time of what kills runs."""
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)
