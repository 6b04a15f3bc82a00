"""What the processes of one run of the tests have in common: made by one, taken by the others."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

__all__ = ["shared_file", "shared_folder"]


@contextmanager
def shared_folder(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """A folder of all processes, for one of them at a time."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"shared-{name}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield folder


def shared_file(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """A file of all processes; the first to want it has `make` make it, given a fresh folder."""
    with shared_folder(factory, name) as folder:
        there = next((path for path in folder.iterdir() if path.name != "lock"), None)
        if there is None:
            made = make(factory.mktemp(name))
            there = folder / made.name
            shutil.move(made, there)
        return there
