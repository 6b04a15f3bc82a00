"""Work in progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.engine import scratch as module
from provision.engine.scratch import scratch
from provision.errors import ProvisionError


def test_a_folder_is_empty_at_first_and_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "scratch/work/left/by/a/killed/run").mkdir(parents=True)
    with scratch(tmp_path, "work") as folder:
        assert list(folder.iterdir()) == []
        (folder / "file").write_text("x")
    assert not folder.exists()


def test_what_any_killed_run_left_goes_with_the_next(tmp_path: Path) -> None:
    for name in ("save", "bundle", "export"):
        (tmp_path / "scratch" / name / "blobs").mkdir(parents=True)
    with scratch(tmp_path, "import"), scratch(tmp_path, "verify"):
        assert {path.name for path in (tmp_path / "scratch").iterdir()} == {"import", "verify"}


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with scratch(tmp_path, "work") as folder:
            (folder / "file").write_text("x")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert not (tmp_path / "scratch/work").exists()


def test_what_is_still_mounted_in_it_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A debootstrap that was killed leaves /proc and /sys in its root."""
    inside = tmp_path / "a b/scratch/base/root/proc/1"
    inside.mkdir(parents=True)
    place = str(inside.parent).replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"28 1 0:24 / / rw - ext4 a rw\n29 28 0:25 / {place} rw - proc proc rw\n")
    monkeypatch.setattr(module, "_MOUNTS", mounts)
    with pytest.raises(ProvisionError) as caught, scratch(tmp_path / "a b", "base"):
        raise AssertionError("it was removed")
    assert str(caught.value.resolution).endswith(f"umount '{inside.parent}'")
    assert inside.is_dir()
    mounts.write_text("28 1 0:24 / / rw - ext4 a rw\n")
    with scratch(tmp_path / "a b", "base"):
        assert not inside.exists()
