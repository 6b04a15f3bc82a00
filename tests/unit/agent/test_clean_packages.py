"""What garbage collection removes from the state folder besides packages."""

from __future__ import annotations

import os
import time
from pathlib import Path

from provision.agent.garbage import UNUSED_DAYS, remove_packages
from provision.files import lock
from provision.fleet.matrix.cells import Cell, Column, Row
from provision.fleet.matrix.results import Results, matrix_folder, result_of


def _file(path: Path, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    then = time.time() - days * 86400
    os.utime(path, (then, then))
    return path


def test_old_logs_go_unless_a_result_names_them(tmp_path: Path) -> None:
    root, state = tmp_path / "root", tmp_path / "state"
    old, young = UNUSED_DAYS + 1, UNUSED_DAYS - 1
    gone = _file(state / "logs/demo-1.log", old)
    named = _file(state / "logs/demo-2.log", old)
    recent = _file(state / "logs/demo-3.log", young)
    other = _file(state / "logs/notes.txt", old)
    results = Results(matrix_folder(root))
    cell = Cell(Row("demo", "1.0", "open"), Column("debian:12", "6.1.0-1-amd64"))
    results.write(result_of(cell, "failed", log=str(named)))
    expected = [("demo-1.log", 1)]
    assert remove_packages(root, state=state, dry_run=True) == expected
    assert gone.exists()
    assert remove_packages(root, state=state) == expected
    assert not gone.exists()
    assert all(path.exists() for path in (named, recent, other))


def test_old_locks_go_unless_a_process_holds_them(tmp_path: Path) -> None:
    state = tmp_path / "state"
    gone, held, young = (
        _file(state / "locks" / name, days)
        for name, days in (("a", UNUSED_DAYS + 1), ("b", UNUSED_DAYS + 1), ("c", 1))
    )
    with lock(held):
        assert remove_packages(tmp_path, state=state) == [("a", 1)]
    assert [path.exists() for path in (gone, held, young)] == [False, True, True]
