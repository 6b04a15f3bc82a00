"""Entries that are replaced, and the locks of a host."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event, Thread

import pytest

from kit.artifact import add
from provision.errors import ExitCode, InUseError
from provision.progress import listening
from provision.store import layout as locks_of_host
from provision.store.entries import remove_leftovers
from provision.store.layout import Layout, building, changing, switching
from unit.killing import KILLER


@pytest.mark.usefixtures("no_sync")
def test_an_entry_that_is_replaced_is_never_lost(tmp_path: Path) -> None:
    digest, numbers, found = "0123456789ab", iter(range(1000)), set()

    def fill(folder: Path, content: str) -> None:
        folder.mkdir()
        (folder / "file").write_text(content)

    for number in numbers:
        layout = Layout(tmp_path / str(number), "demo")
        add(layout, digest, lambda folder: fill(folder, "old"))
        with KILLER.at(number):
            add(layout, digest, lambda folder: fill(folder, "new"), replace=True)
        remove_leftovers(layout)
        found.add((layout.entry(digest) / "file").read_text())
        assert {path.name for path in layout.folder.iterdir()} <= {digest, ".lock"}
        if KILLER.count <= number:
            break
    assert found == {"old", "new"}


def test_an_entry_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, synced = Layout(tmp_path, "demo"), []

    def fill(folder: Path) -> None:
        folder.mkdir()
        (folder / "file").write_text("content")

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr("os.fsync", note)
    add(layout, "0123456789ab", fill)
    *content, folder = synced
    assert [path.name for path in content] == ["file", content[0].parent.name]
    assert folder == layout.folder


Lock = Callable[[], AbstractContextManager[object]]


@pytest.fixture
def locks(tmp_path: Path) -> dict[str, Lock]:
    """The locks of a host, by name."""
    return {
        "building": lambda: building(tmp_path),
        "switching": lambda: switching(tmp_path),
        "changing": lambda: changing(Layout(tmp_path, "demo")),
        "another": lambda: changing(Layout(tmp_path, "other")),
    }


def _order(locks: dict[str, Lock], first: str, second: str) -> None:
    with locks[first](), locks[second]():
        pass


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("building", "switching"),
        ("building", "changing"),
        ("switching", "changing"),
        # This thread has it already.
        ("building", "building"),
        ("switching", "switching"),
        ("changing", "changing"),
    ],
)
def test_locks_are_taken_in_their_order(first: str, second: str, locks: dict[str, Lock]) -> None:
    for _ in range(2):
        _order(locks, first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("switching", "building"),
        ("changing", "building"),
        ("changing", "switching"),
        ("changing", "another"),
    ],
)
def test_what_could_make_two_wait_for_each_other_is_a_defect(
    first: str, second: str, locks: dict[str, Lock]
) -> None:
    with pytest.raises(RuntimeError, match="out of order"):
        _order(locks, first, second)
    # Nothing stays locked behind it.
    _order(locks, second, second)


def test_a_lock_outlasts_being_taken_again(tmp_path: Path) -> None:
    layout = Layout(tmp_path, "demo")
    with changing(layout):
        with changing(layout):
            pass
        with layout.lock.open("ab") as stream, pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_wait_that_is_too_long_ends_with_what_it_was_for(
    tmp_path: Path, notes: list[str]
) -> None:
    path = tmp_path / "run/provision/switching.lock"
    path.parent.mkdir(parents=True)
    with path.open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with (
            pytest.raises(InUseError, match=str(path)) as caught,
            switching(tmp_path, limit=0.1),
        ):
            pass
    assert caught.value.exit_code == ExitCode.IN_USE
    assert f"fuser -v {path}" in (caught.value.resolution or "")
    assert notes == ["Another provision is at work on this host; waiting for it"]


def test_a_short_wait_is_worth_no_words_but_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met, notes, found = Event(), list[object](), list[bool]()

    def sleep(seconds: float, *, real: Callable[[float], None] = time.sleep) -> None:
        met.set()
        real(seconds)

    def second() -> None:
        with listening(notes.append), building(tmp_path) as waited:
            found.append(waited)

    monkeypatch.setattr(time, "sleep", sleep)
    # No wait of this test is long, however busy the machine.
    monkeypatch.setattr(locks_of_host, "_PATIENCE_SECONDS", 60.0)
    with building(tmp_path):
        thread = Thread(target=second)
        thread.start()
        assert met.wait(30)
    thread.join(30)
    assert (found, notes) == ([True], [])
