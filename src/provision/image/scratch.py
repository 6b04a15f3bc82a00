"""Folders for work in progress: one user at a time, and what a killed one left is removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.files import lock
from provision.progress import Note, Progress, silent


@contextmanager
def scratch(state: Path, name: str, *, progress: Progress = silent) -> Iterator[Path]:
    """Yield an empty folder that is removed afterwards, or by the next run.

    Args:
        state: Folder for provision's own state.
        name: What the folder is for; whoever wants the same one waits.
        progress: Told about the wait.

    Raises:
        OSError: The folder can't be made or removed.
    """

    def waiting() -> None:
        progress(Note(f"Another process is at work in {folder}; waiting for it"))

    folder = state / name
    with lock(state / "locks" / name, on_wait=waiting):
        _remove(folder)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            _remove(folder)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
