"""Where things that are slow to make are kept between runs, outside the repository.

Nothing in it is precious: delete the folder and the next run makes it again.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["REPOSITORY", "cache_dir", "cached"]

REPOSITORY = Path(__file__).resolve().parents[2]


def cache_dir() -> Path:
    """`$PROVISION_TEST_CACHE`, else a folder below `$XDG_CACHE_HOME`, else below /var/cache."""
    named = os.environ.get("PROVISION_TEST_CACHE")
    if named:
        folder = Path(named)
    else:
        parent = os.environ.get("XDG_CACHE_HOME")
        folder = Path(parent) / "provision-tests" if parent else Path("/var/cache/provision-tests")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _locked(name: Path) -> Iterator[None]:
    with name.open("w") as lock:
        flock(lock, LOCK_EX)
        yield


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The cache entry `name`; where it is missing, `make` fills a fresh path that then becomes it.

    Two processes that want the same entry don't both make it; an entry is there whole or not at
    all, because it gets its name by one rename.
    """
    entry = cache_dir() / name
    with _locked(cache_dir() / f".{name}.lock"):
        if entry.exists():
            return entry
        draft = cache_dir() / f".{name}.draft"
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft)
        draft.unlink(missing_ok=True)
        make(draft)
        draft.rename(entry)
    return entry
