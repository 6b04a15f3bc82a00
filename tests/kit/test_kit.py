"""The kit's own parts that need neither root nor an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.cache import cached, key_of
from kit.playbooks import Played
from kit.probe import need
from kit.process import Daemon, end_tree_of


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
