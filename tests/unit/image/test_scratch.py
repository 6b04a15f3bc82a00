"""Work in progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.image.scratch import scratch


def test_a_folder_is_empty_at_first_and_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "work/left/by/a/killed/run").mkdir(parents=True)
    with scratch(tmp_path, "work") as folder:
        assert list(folder.iterdir()) == []
        (folder / "file").write_text("x")
    assert not folder.exists()


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with scratch(tmp_path, "work") as folder:
            (folder / "file").write_text("x")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert not (tmp_path / "work").exists()
