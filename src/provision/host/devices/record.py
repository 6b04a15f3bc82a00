"""The files of facts about devices, one a vendor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from provision.errors import ProvisionError, UsageError
from provision.files import glob_in_root, in_root, lock, remove_drafts, write_atomic

if TYPE_CHECKING:
    from provision.host.devices.device_facts import Facts

FOLDER = PurePosixPath("run/oci-decorator/devices")
_LOCK = PurePosixPath("run/provision/devices.lock")
# Longer than its holder may wait for NVML, and for a process that can't be killed.
_WAIT_S = 90.0


def facts_path(root: Path, vendor: str) -> Path:
    """Return the file with the facts of a vendor's devices."""
    if not vendor or "/" in vendor or vendor.startswith("."):
        raise UsageError(
            f"'{vendor}' is no name of a vendor.",
            resolution="Name one of those that 'provision devices' lists.",
        )
    return in_root(root, FOLDER) / f"{vendor}.json"


@contextmanager
def recording(root: Path) -> Iterator[None]:
    """Keep other processes from collecting facts, so that older facts never replace newer ones.

    It is held for unloading a driver too: a process that asks NVML keeps the driver in use.

    Raises:
        InUseError: Another process collects for too long.
    """
    with lock(in_root(root, _LOCK), limit=_WAIT_S):
        yield


def write_facts(root: Path, vendor: str, facts: Facts) -> bool:
    """Write facts, which all users may read; the caller holds ``recording``.

    Returns:
        Whether anything changed.
    """
    path = facts_path(root, vendor)
    remove_drafts(path)
    return write_atomic(path, facts.text(), mode=0o644)


def remove_facts(root: Path, vendor: str) -> bool:
    """Remove the facts of devices whose driver is gone; the caller holds ``recording``.

    Returns:
        Whether there was a file.
    """
    path = facts_path(root, vendor)
    remove_drafts(path)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def recorded(root: Path) -> list[str]:
    """Return the vendors with recorded facts."""
    return [path.stem for path in glob_in_root(root, f"{FOLDER}/*.json")]


def recorded_problems(root: Path, vendor: str) -> tuple[str, ...]:
    """Return what is not known of a vendor's devices, from their file; empty without a file.

    A file that can't be read is a problem too. Each look at a host calls this, so it uses no model,
    which would take time to load.
    """
    try:
        document = json.loads(facts_path(root, vendor).read_bytes())
        problems = document.get("problems", [])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, AttributeError, ProvisionError) as error:
        return (f"the facts of its devices can't be read: {error}",)
    return tuple(str(problem) for problem in problems)
