"""Scratch folders, in one place, each for one process at a time; and the names of containers.

What killed runs left there, which may be gigabytes, goes when the next one is made.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from provision.errors import InUseError
from provision.files import lock, write_atomic

_PLACE = "scratch"
_NAME = "engine-name"


@contextmanager
def scratch(state: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder of this user alone, removed afterwards or by the next run of any.

    Args:
        name: Another for what runs inside the block: a second process waits for the first.
    """
    folder = state / _PLACE / name
    waiting = f"Another process is at work in {folder}; waiting for it"
    with lock(_lock(folder), waiting=waiting):
        _remove(folder)
        clean(state)
        folder.parent.mkdir(parents=True, exist_ok=True)
        # What is unpacked in it may have any owner and mode until it is looked at.
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            _remove(folder)


def container_owner(state: Path, work: str) -> str:
    """Return the label of containers for some work, whose leftovers are removed before the next.

    The work has a lock in the state folder. Hosts that share an engine may have theirs at the same
    path: a random name, made once, tells them apart.
    """
    path = state / _NAME
    with lock(state / "locks" / _NAME):
        if not path.exists():
            write_atomic(path, token_hex(16))
        name = path.read_text()
    return hashlib.sha256(f"{name} {work}".encode()).hexdigest()[:32]


def clean(state: Path) -> None:
    """Remove the scratch folders that no process is at work in."""
    for folder in (state / _PLACE).glob("*"):
        with suppress(InUseError), lock(_lock(folder), limit=0):
            _remove(folder)


def _lock(folder: Path) -> Path:
    return folder.parents[1] / "locks" / folder.name


def _remove(folder: Path) -> None:
    # What a run mounts in it lies in a mount namespace of its own, which ends with the run.
    if folder.exists():
        shutil.rmtree(folder)
