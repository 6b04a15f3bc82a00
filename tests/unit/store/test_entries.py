"""Entries that are replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.artifact import add
from provision.store.entries import remove_leftovers
from provision.store.layout import Layout
from unit.killing import KILLER


def test_an_entry_that_is_replaced_is_never_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)
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
