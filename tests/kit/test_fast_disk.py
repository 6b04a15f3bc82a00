"""The disk of tests: where it is used, and that nothing of it stays."""

from __future__ import annotations

import os
import shutil
import tempfile
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from kit import fast_disk
from kit.fast_disk import mount_fast_disk
from kit.process import CommandFailedError, Completed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that are called; none of them is."""
    programs: list[str] = []

    def run(argv: list[object], *, check: bool = True) -> Completed:
        del check
        programs.append(str(argv[0]))
        return Completed((), 0, "", "")

    monkeypatch.setattr(fast_disk, "run", run)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("TMPDIR", "unset at the end")
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _free(monkeypatch, gigabytes=40)
    return programs


def _free(monkeypatch: pytest.MonkeyPatch, *, gigabytes: int) -> None:
    usage = SimpleNamespace(free=gigabytes << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)


def test_a_folder_that_the_caller_chose_stays(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/srv/t")
    assert mount_fast_disk() is None
    assert said == []


def test_without_root_there_is_none(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert mount_fast_disk() is None
    assert said == []


def test_temporary_files_lie_on_it_and_runs_that_were_killed_leave_none(
    said: list[str], tmp_path: Path
) -> None:
    # No process has this number: proc(5), pid_max.
    (tmp_path / "prov-4194305").mkdir()
    (tmp_path / "prov-4194305.ext4").touch()
    folder = mount_fast_disk()
    assert folder is not None
    assert said == ["umount", "mkfs.ext4", "mount"]
    assert os.environ["TMPDIR"] == tempfile.gettempdir() == str(folder)
    image = tmp_path / f"{folder.name}.ext4"
    assert sorted(tmp_path.iterdir()) == [folder, image]
    assert image.stat().st_size == 40 << 30
    fast_disk.unmount_fast_disk(folder)
    assert list(tmp_path.iterdir()) == []
    assert "TMPDIR" not in os.environ


def test_a_disk_that_is_nearly_full_is_left_alone(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _free(monkeypatch, gigabytes=15)
    assert mount_fast_disk() is None
    assert said == []
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_loop_devices_goes_on_without_one(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path, size: int) -> None:
        del size
        raise CommandFailedError(Completed(("mount", str(folder)), 32, "", "no loop device"))

    monkeypatch.setattr(fast_disk, "_mount", refuse)
    assert mount_fast_disk() is None
    assert said == ["umount"]
    assert list(tmp_path.iterdir()) == []
    assert "TMPDIR" not in os.environ
