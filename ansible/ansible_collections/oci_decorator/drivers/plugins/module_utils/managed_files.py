"""Remembers what a file was before it was changed, so that it can be put back.

The record of a set of managed files is one JSON file on the host. It has, by path, the text that
was there before (null: none) and the checksum of what was written. So three things can be
distinguished later: a file as it was written, one that was changed since, and one that was removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Puts a finished draft in place by one rename, with SELinux labels: AnsibleModule.atomic_move.
Move = Callable[[str, str], None]


@dataclass(frozen=True)
class Record:
    """What was done to a file.

    Attributes:
        original: Its text before; None: it was not there.
        mode: Its permission bits before; None: it was not there.
        folders: Folders that were made for it, the outermost first.
        written: Checksums of the text that was written last, and of the one before: a run that is
            killed before it writes leaves that one.
    """

    original: str | None
    mode: int | None
    folders: list[str]
    written: list[str]


@dataclass(frozen=True)
class Change:
    """A file that has to change.

    Attributes:
        path: Which.
        before: Its text now; None: it is not there.
        after: Its text then; None: it will not be there.
        mode: Its permission bits then; None: as they are, or 0644.
    """

    path: str
    before: str | None
    after: str | None
    mode: int | None = None

    def diff(self) -> dict[str, str]:
        """Return the change as ``--diff`` shows it."""
        return {
            "before_header": self.path,
            "after_header": self.path,
            "before": shown(self.before or ""),
            "after": shown(self.after or ""),
        }


class ManagedFiles:
    """A set of files that we wrote on a host, by path."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.records: dict[str, Record] = {}
        if self.path.exists():
            document: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            self.records = {name: Record(**record) for name, record in document.items()}

    def is_as_written(self, path: str, text: str | None) -> bool:
        """Whether a file has the text that we wrote."""
        record = self.records.get(path)
        return record is not None and text is not None and checksum(text) in record.written

    def original(self, path: str) -> str | None:
        """Return what a file was before we first wrote it."""
        record = self.records.get(path)
        return record.original if record else None

    def wish(self, path: str, text: str, mode: int | None = None) -> Change | None:
        """Return the change that gives a file a text; None if it has that text."""
        before = read(path)
        if before == text and (mode is None or mode_of(path) == mode):
            return None
        return Change(path, before, text, mode)

    def restore(self, path: str) -> Change | None:
        """Return the change that restores a file; None if there is none to make.

        What was changed since by others stays.
        """
        before = read(path)
        record = self.records.get(path)
        if record is None or not self.is_as_written(path, before) or before == record.original:
            return None
        return Change(path, before, record.original, record.mode)

    def make(self, changes: Iterable[Change], move: Move) -> None:
        """Make changes, each remembered before it is made."""
        for change in changes:
            if change.after is None:
                Path(change.path).unlink()
                remove_empty(self.records[change.path].folders)
                continue
            sums = [checksum(text) for text in (change.after, change.before) if text is not None]
            record = self.records.get(change.path)
            if record is None or not self.is_as_written(change.path, change.before):
                # The earlier file is foreign.
                folders = missing_folders(change.path)
                record = Record(change.before, mode_of(change.path), folders, sums[:1])
            else:
                record = Record(record.original, record.mode, record.folders, sums)
            self.records[change.path] = record
            self.save(move)
            write(change.path, change.after, change.mode, move)

    def forget(self, paths: Iterable[str], move: Move) -> None:
        """Remove files from the record; an empty record is deleted."""
        for path in paths:
            self.records.pop(path, None)
        if self.records:
            self.save(move)
        elif self.path.exists():
            self.path.unlink()
            remove_empty([str(self.path.parent)])

    def save(self, move: Move) -> None:
        """Write the record, which may contain originals that only root may read."""
        document = {name: asdict(record) for name, record in sorted(self.records.items())}
        write(str(self.path), json.dumps(document, indent=2) + "\n", 0o600, move)


def read(path: str) -> str | None:
    """Return a file's text; None if there is no such file.

    What an admin wrote in another encoding than UTF-8 comes back as the same bytes by ``write``.
    """
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None


def write(path: str, text: str, mode: int | None, move: Move) -> None:
    """Write a file completely or not at all, synced, with its final mode from the start."""
    kept = mode_of(path) if mode is None else mode
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    draft = f"{path}.draft-{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(text)
        stream.flush()
        os.fchmod(stream.fileno(), 0o644 if kept is None else kept)
        os.fsync(stream.fileno())
    move(draft, path)
    if kept is not None and mode_of(path) != kept:
        Path(path).chmod(kept)


def missing_folders(path: str) -> list[str]:
    """Return the folders that are missing for a file, the outermost first."""
    return [str(folder) for folder in reversed(Path(path).parents) if not folder.exists()]


def remove_empty(folders: Iterable[str]) -> None:
    """Remove empty folders, the innermost first."""
    for folder in reversed(list(folders)):
        with suppress(OSError):
            Path(folder).rmdir()


def mode_of(path: str) -> int | None:
    """Return a file's permission bits; None if there is no such file."""
    try:
        return stat.S_IMODE(Path(path).stat().st_mode)
    except FileNotFoundError:
        return None


def checksum(text: str) -> str:
    """Return the checksum that a record holds of a text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def shown(text: str) -> str:
    """Return a text for people and for Ansible, which knows only UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="replace")
