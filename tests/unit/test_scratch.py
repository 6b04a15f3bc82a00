"""Work in progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.files import scratch


def test_what_any_killed_run_left_goes_with_the_next(tmp_path: Path) -> None:
    for name in ("save", "bundle", "import"):
        (tmp_path / "scratch" / name / "blobs").mkdir(parents=True)
    with scratch(tmp_path, "import") as folder, scratch(tmp_path, "verify"):
        assert list(folder.iterdir()) == []
        assert {path.name for path in (tmp_path / "scratch").iterdir()} == {"import", "verify"}


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with scratch(tmp_path, "work") as folder:
            (folder / "file").write_text("x")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert not (tmp_path / "scratch/work").exists()
