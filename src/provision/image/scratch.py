"""Folders for work in progress: one user at a time, and what a killed one left is removed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.files import lock
from provision.progress import Note, Progress, silent
from provision.run import run

_MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT = 4


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
        remove_tree(folder)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            remove_tree(folder)


def remove_tree(folder: Path) -> None:
    """Remove a folder; what is mounted in it is unmounted, never emptied.

    Raises:
        ProvisionError: Something can't be unmounted.
        OSError: Something can't be removed.
    """
    for mount in mounts_below(folder, _MOUNTS.read_text() if _MOUNTS.exists() else ""):
        run(["umount", mount], why="remove what an interrupted run left mounted")
    if folder.exists():
        shutil.rmtree(folder)


def mounts_below(folder: Path, mountinfo: str) -> list[str]:
    """Return the mount points in a folder, the innermost first.

    Source: proc_pid_mountinfo(5); blanks in paths are written in octal.
    """
    points = [
        re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), line.split()[_MOUNT_POINT])
        for line in mountinfo.splitlines()
    ]
    inside = [point for point in points if Path(point).is_relative_to(folder.resolve())]
    return sorted(inside, key=len, reverse=True)
