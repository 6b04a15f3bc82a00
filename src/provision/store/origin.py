"""Where artifacts of the store came from: which are not signed, and how new the signed ones were.

The mark of an unsigned one is a file of the entry itself, so that it appears and goes with it. The
manifest does not name it: it says what was built, not where it came from. The serials are kept
beside the entries and outlive them: a registry that serves an old artifact again is found out.
"""

from __future__ import annotations

import json
from pathlib import Path

from provision.errors import ProvisionError
from provision.files import write_atomic
from provision.store.layout import Layout

# As in provision.manifest, which takes too long to load for a run that finds nothing to do.
MARK = "unsigned"
_LONGEST = 4096
_LONGEST_SERIALS = 1 << 20


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


def newest_serial(layout: Layout, target: str) -> int:
    """Return the serial of the newest artifact that was taken from a registry; 0: there was none.

    Args:
        layout: The driver's places.
        target: What it was for: distro, kernel and architecture.

    Raises:
        ProvisionError: What was noted can't be read, so that nothing may be taken.
    """
    return _serials(layout).get(target, 0)


def note_serial(layout: Layout, target: str, serial: int) -> None:
    """Note the serial of an artifact that was taken from a registry.

    The caller holds the driver's lock. Arguments and errors as ``newest_serial``.
    """
    serials = _serials(layout)
    if serials.get(target) != serial:
        text = json.dumps({**serials, target: serial}, indent=2, sort_keys=True)
        write_atomic(layout.serials, f"{text}\n")


def _serials(layout: Layout) -> dict[str, int]:
    try:
        with layout.serials.open("rb") as stream:
            found = json.loads(stream.read(_LONGEST_SERIALS))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(serial) is int for serial in found.values()):
        raise ProvisionError(
            f"'{layout.serials}' can't be read, which says how new the artifacts were that came"
            " from a registry.",
            resolution="To forget it, and take the next signed artifact however old it is:"
            f" mv {layout.serials} {layout.serials}.unreadable",
        )
    return {str(target): int(serial) for target, serial in found.items()}
