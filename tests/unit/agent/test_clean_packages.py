"""What garbage collection removes from the state folder besides packages."""

from __future__ import annotations

import os
import time
from pathlib import Path

from provision.agent.removal import UNUSED_DAYS, remove_packages
from provision.files import lock


def _file(path: Path, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    then = time.time() - days * 86400
    os.utime(path, (then, then))
    return path


def test_old_logs_go(tmp_path: Path) -> None:
    root, state = tmp_path / "root", tmp_path / "state"
    old, young = UNUSED_DAYS + 1, UNUSED_DAYS - 1
    gone = _file(state / "logs/demo-1.log", old)
    recent = _file(state / "logs/demo-3.log", young)
    other = _file(state / "logs/notes.txt", old)
    expected = [("demo-1.log", 1)]
    assert remove_packages(root, state=state, dry_run=True) == expected
    assert gone.exists()
    assert remove_packages(root, state=state) == expected
    assert not gone.exists()
    assert all(path.exists() for path in (recent, other))


def test_old_locks_go_unless_a_process_holds_them(tmp_path: Path) -> None:
    state = tmp_path / "state"
    gone, held, young = (
        _file(state / "locks" / name, days)
        for name, days in (("a", UNUSED_DAYS + 1), ("b", UNUSED_DAYS + 1), ("c", 1))
    )
    with lock(held):
        assert remove_packages(tmp_path, state=state) == [("a", 1)]
    assert [path.exists() for path in (gone, held, young)] == [False, True, True]
