"""Work in progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.image.scratch import mounts_below, scratch


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


def test_mounts_are_found_the_innermost_first(tmp_path: Path) -> None:
    lines = [
        f"22 1 0:20 / {tmp_path}/work/proc rw - proc proc rw",
        f"23 22 0:21 / {tmp_path}/work/proc/bus\\040usb rw - x x rw",
        f"24 1 0:22 / {tmp_path}/worked rw - tmpfs tmpfs rw",
        "25 1 0:23 / /proc rw - proc proc rw",
    ]
    assert mounts_below(tmp_path / "work", "\n".join(lines)) == [
        f"{tmp_path}/work/proc/bus usb",
        f"{tmp_path}/work/proc",
    ]
