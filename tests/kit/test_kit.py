"""The kit's own parts that need neither root nor an engine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kit.cache import cached, key_of, prune
from kit.playbooks import Played
from kit.probe import need
from kit.process import Daemon, end_tree_of, start, wait_for


def test_a_missing_tool_skips_locally_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs a GPU"):
        need(available=False, what="a GPU", remedy="buy one")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs a GPU"):
        need(available=False, what="a GPU", remedy="buy one")
    need(available=True, what="a GPU", remedy="buy one")


def test_a_cache_entry_is_made_once_and_only_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVISION_TEST_CACHE", str(tmp_path))
    made: list[Path] = []

    def half(draft: Path) -> None:
        draft.mkdir()
        raise OSError("disk full")

    def whole(draft: Path) -> None:
        draft.mkdir()
        made.append(draft)

    with pytest.raises(OSError, match="disk full"):
        cached("tree", half)
    assert not (tmp_path / "tree").exists()
    assert cached("tree", whole) == cached("tree", whole) == tmp_path / "tree"
    assert len(made) == 1


def test_a_tree_of_processes_is_ended_by_a_word_that_only_it_has(tmp_path: Path) -> None:
    word = str(tmp_path / "socket")
    log = tmp_path / "log"
    argv = ["sh", "-c", "sleep 1000 & echo $!; wait", word]
    with Daemon(argv, log=log, ready=lambda: log.read_text().endswith("\n")):
        end_tree_of(word)
        child = Path("/proc") / log.read_text().strip() / "stat"
        # Z: it has ended; its parent has not asked for the status yet.
        assert not child.exists() or " Z " in child.read_text()


def test_what_is_waited_for_is_named_if_it_does_not_come(tmp_path: Path) -> None:
    answers = iter(("", "here"))
    assert wait_for("it", lambda: next(answers), within_s=60, pause_s=0.01) == "here"
    with pytest.raises(TimeoutError, match="for a train\nlate"):
        wait_for("a train", lambda: False, within_s=0, said=lambda: "late")
    ends = start(["true"], log=tmp_path / "log")
    assert not wait_for("a train", lambda: False, within_s=60, or_end_of=ends)


def test_what_a_playbook_changed_is_known_by_host() -> None:
    output = (
        "TASK [role : Ensure a file] ***\nchanged: [one]\nok: [two]\n"
        "TASK [Fetch] ***\nchanged: [two -> localhost]\n"
        "RUNNING HANDLER [Restart] ***\nchanged: [one] => (item=x)\n"
    )
    played = Played(0, output, {})
    assert played.changed_tasks() == ["Ensure a file", "Fetch", "Restart"]
    assert played.changed_tasks("one") == ["Ensure a file", "Restart"]
    assert played.changed_tasks("two") == ["Fetch"]


def test_a_key_changes_with_what_files_do_and_not_with_their_words(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/one.py").write_text('def one():\n    """A."""\n    return 1\n')
    key = key_of("x", tmp_path)
    (tmp_path / "code/one.pyc").write_text("compiled")
    assert key_of("x", tmp_path) == key
    (tmp_path / "code/one.py").write_text('def one():\n    """B."""\n    return (1)  # C\n')
    assert key_of("x", tmp_path) == key
    (tmp_path / "code/two.txt").write_text("words")
    assert key_of("x", tmp_path) != key
    key = key_of("x", tmp_path)
    assert key_of("y", tmp_path) != key
    (tmp_path / "code/one.py").write_text("2")
    assert key_of("x", tmp_path) != key


def test_what_was_not_used_for_longest_and_is_soon_made_leaves_the_cache_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVISION_TEST_CACHE", str(tmp_path))

    def two_mib(draft: Path) -> None:
        draft.write_bytes(bytes(2 << 20))

    for age, name in enumerate(("newest", "older", "oldest", "debs-suite", "an hour's work")):
        path = cached(name, two_mib)
        lock = path.with_name(f".{name}.lock")
        if name == "an hour's work":
            lock.write_text("3600")
        for one in (path, lock):
            os.utime(one, (time.time() - 3600 * age,) * 2)
    cached("older", lambda _: pytest.fail("it is there"))
    # The first leaves as much as there may be, the second what was used lately.
    used_lately = {"newest", "older"}
    for limit, in_use_s, kept in ((7 << 20, 0, {"an hour's work"}), (0, 60, set[str]())):
        prune(limit, in_use_s)
        left = {path.name for path in tmp_path.iterdir() if path.name[0] != "."}
        assert left == used_lately | kept
