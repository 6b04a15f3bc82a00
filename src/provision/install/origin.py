"""Which artifacts of the store came from a registry without a signature.

The mark is a file of the entry itself, so that it appears and goes with it. The manifest does not
name it: it says what was built, not where it came from.
"""

from __future__ import annotations

from pathlib import Path

from provision.files import write_atomic

# As in provision.manifest, which takes too long to load for a run that finds nothing to do.
MARK = "unsigned"
_LONGEST = 4096


def mark_unsigned(entry: Path, reference: str) -> None:
    """Note in an entry, before it is complete, that it is not signed.

    Args:
        entry: Its folder.
        reference: The image that it came from.

    Raises:
        OSError: The store can't be written.
    """
    write_atomic(entry / MARK, f"{reference}\n")


def unsigned_reference(entry: Path) -> str | None:
    """Return the image that an unsigned entry came from; None: it was built here, or is signed."""
    try:
        with (entry / MARK).open("rb") as stream:
            return stream.read(_LONGEST).decode(errors="replace").strip()
    except OSError:
        return None
