"""Tells others how the host is: status.json, metrics and the journal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provision.agent.journal import Priority, tell
from provision.agent.metrics import metrics_text
from provision.agent.outcome import Outcome
from provision.agent.paths import EXPORTER_FOLDERS, METRICS, STATUS
from provision.agent.status import SlotStatus, Status
from provision.files import remove_drafts, write_atomic
from provision.rootfs import in_root

_BAD = {
    "failed": Priority.ERROR,
    "missing": Priority.WARNING,
    "next-kernel-not-ready": Priority.ERROR,
}


def publish(
    root: Path, status: Status, outcomes: Iterable[Outcome], *, textfile: str | None
) -> list[str]:
    """Write a host's status to where others look for it; the caller holds the host's lock.

    Args:
        root: Root of the host.
        status: How it is.
        outcomes: What was done.
        textfile: Where metrics go; None: to the exporter's folder, if there is one.

    Returns:
        What could not be written: nobody's work fails for that.
    """
    problems = []
    before = last_status(root)
    _tell(root, status, outcomes, before=before)
    files = {in_root(root, STATUS, follow=False): json.dumps(status.document(), indent=2) + "\n"}
    metrics = _metrics_file(root, textfile)
    if metrics is not None:
        files[metrics] = metrics_text(status)
    for path, text in files.items():
        remove_drafts(path)
        try:
            write_atomic(path, text)
        except OSError as error:
            problems.append(f"'{path}' could not be written: {error.strerror or error}")
    return problems


def last_status(root: Path) -> dict[str, Any] | None:
    """Return the document that was written last; None if there is none that can be read."""
    try:
        document = json.loads(in_root(root, STATUS).read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _metrics_file(root: Path, textfile: str | None) -> Path | None:
    if textfile is not None:
        return in_root(root, textfile, follow=False)
    folders = (in_root(root, folder) for folder in EXPORTER_FOLDERS)
    folder = next((folder for folder in folders if folder.is_dir()), None)
    return None if folder is None else folder / METRICS


def _tell(
    root: Path, status: Status, outcomes: Iterable[Outcome], *, before: dict[str, Any] | None
) -> None:
    for outcome in outcomes:
        action, error = outcome.action, outcome.error
        tell(
            root,
            f"{action}: {outcome.result}",
            Priority.ERROR if error else Priority.INFO,
            {
                "action": action.kind,
                "driver": action.driver,
                "kernel": action.kernel,
                "seconds": f"{outcome.seconds:.3f}",
                "details": error.details if error else None,
                "resolution": error.resolution if error else None,
            },
        )
    for name, note in _new_notes(status, before):
        tell(root, f"{name}: {note}", Priority.WARNING, {"driver": name})
    if status.error is not None and (before or {}).get("error") != asdict(status.error):
        trouble = status.error
        fields = {"details": trouble.details, "resolution": trouble.resolution}
        tell(root, trouble.message, Priority.ERROR, fields)
    if before is None or before.get("state") != status.state:
        priority = _BAD.get(status.state, Priority.INFO)
        for name, slot in _worst_slots(status):
            tell(
                root,
                f"{name} for {slot.release} is {slot.state}: {slot.reason}",
                priority,
                {"driver": name, "kernel": slot.release, "state": slot.state},
            )
        tell(root, f"The host is {status.state}", priority, {"state": status.state})


def _new_notes(status: Status, before: dict[str, Any] | None) -> Iterable[tuple[str, str]]:
    """Return what the status notes of drivers and the one before did not."""
    drivers = (before or {}).get("drivers", ())
    known = {(d["name"], note) for d in drivers for note in d.get("notes", ())}
    found = ((driver.name, note) for driver in status.drivers for note in driver.notes)
    return (one for one in found if one not in known)


def _worst_slots(status: Status) -> Iterable[tuple[str, SlotStatus]]:
    return (
        (driver.name, slot)
        for driver in status.drivers
        for slot in driver.kernels
        if slot.state != "ready"
    )
