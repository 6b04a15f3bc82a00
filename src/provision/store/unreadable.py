"""Files of our own that can't be read whole: kept under another name before they are written."""

from __future__ import annotations

import hashlib
from pathlib import Path

from provision.files import sync_directory, write_atomic

_SUFFIX = ".unreadable-"
_DIGITS = 8


def set_aside(path: Path) -> Path:
    """Keep a copy of a file that is about to be written, and return its path.

    The same content gets the same name, so a run that is killed may do this again.

    Raises:
        OSError: The folder can't be written.
    """
    try:
        data = path.read_bytes()
    except OSError:
        # A defective disk: all that can be kept of the file is the file.
        kept = path.with_name(f"{path.name}{_SUFFIX}disk")
        path.rename(kept)
        sync_directory(path.parent)
        return kept
    digest = hashlib.sha256(data).hexdigest()[:_DIGITS]
    kept = path.with_name(f"{path.name}{_SUFFIX}{digest}")
    write_atomic(kept, data, mode=0o600)
    return kept


def copies_of(path: Path) -> tuple[Path, ...]:
    """Return the copies of a file that were set aside and are still there."""
    return tuple(sorted(path.parent.glob(f"{path.name}{_SUFFIX}*")))
