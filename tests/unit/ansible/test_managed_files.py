"""What the record of managed files has, through changes of others and runs that broke off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.oci_decorator.drivers.plugins.module_utils.managed_files import (
    ManagedFiles,
)
from ansible_collections.oci_decorator.drivers.plugins.modules._provision_managed_files import (
    as_files,
    planned,
)


class _KilledError(Exception):
    """Stands for a power cut."""


@pytest.fixture
def record_path(tmp_path: Path) -> str:
    return str(tmp_path / "var/record.json")


def _write(record_path: str, *files: tuple[Path, str]) -> int:
    """Have these files and no others; the number of changes."""
    managed = ManagedFiles(record_path)
    wanted = {str(path): {"content": text, "mode": "0640"} for path, text in files}
    changes = planned(managed, wanted)
    managed.make(changes, os.replace)
    managed.forget([path for path in managed.records if path not in wanted], os.replace)
    return len(changes)


def test_files_come_and_go_with_their_folders(tmp_path: Path, record_path: str) -> None:
    path = tmp_path / "etc/ours/a.conf"
    assert _write(record_path, (path, "1")) == 1
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("1", 0o640)
    assert _write(record_path, (path, "1")) == 0
    assert _write(record_path, (path, "2")) == 1
    assert _write(record_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_comes_back(tmp_path: Path, record_path: str) -> None:
    path = tmp_path / "a.conf"
    path.write_text("theirs")
    path.chmod(0o600)
    _write(record_path, (path, "1"))
    _write(record_path, (path, "2"))
    _write(record_path)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("theirs", 0o600)


def test_what_was_changed_since_is_foreign(tmp_path: Path, record_path: str) -> None:
    path = tmp_path / "a.conf"
    _write(record_path, (path, "1"))
    path.write_text("changed")
    assert _write(record_path) == 0
    assert path.read_text() == "changed"


def test_a_wrong_mode_is_corrected(tmp_path: Path, record_path: str) -> None:
    path = tmp_path / "a.conf"
    _write(record_path, (path, "1"))
    path.chmod(0o777)
    assert _write(record_path, (path, "1")) == 1
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("when", range(1, 3))
def test_a_run_that_broke_off_forgets_nothing(tmp_path: Path, record_path: str, when: int) -> None:
    path = tmp_path / "a.conf"
    path.write_text("theirs")
    _write(record_path, (path, "1"))
    moves = []

    def move(draft: str, target: str) -> None:
        moves.append(target)
        if len(moves) == when:
            raise _KilledError
        Path(draft).replace(target)

    managed = ManagedFiles(record_path)
    with pytest.raises(_KilledError):
        managed.make(planned(managed, {str(path): {"content": "2"}}), move)
    for draft in tmp_path.rglob("*.draft-*"):
        draft.unlink()
    _write(record_path, (path, "3"))
    assert path.read_text() == "3"
    _write(record_path)
    assert path.read_text() == "theirs"


def test_documents_become_files() -> None:
    assert as_files({"mine": {"version": "1"}}, "/etc/x") == {
        "/etc/x/mine.json": {"content": '{\n    "version": "1"\n}\n'}
    }
