"""Puts a store entry to use: decides first what has to change, then changes only that.

Every step is repeatable and the whole is decided anew by each run, so a run that was killed
anywhere is finished by the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from provision.documents import Frozen, load_json
from provision.errors import ProvisionError
from provision.files import switch_symlink, sync_directory, write_atomic
from provision.install.layout import Layout
from provision.install.vendor import loader_config, modprobe_config, vendor_config
from provision.manifest import Manifest
from provision.pin import Sha256
from provision.run import run


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to do.

    Attributes:
        kind: ``unpack`` an artifact, ``save`` a copy of somebody's file, ``write`` or ``remove`` a
            file, ``switch`` a link, or refresh the host's library cache (``ldconfig``).
        path: To what.
        value: The file's text, or the link's target.
    """

    kind: Literal["unpack", "save", "write", "remove", "switch", "ldconfig"]
    path: Path
    value: str = ""

    def __str__(self) -> str:
        match self.kind:
            case "switch":
                return f"switch {self.path} to {self.value}"
            case "save":
                return f"save a copy of {self.path} as {self.value}"
            case "ldconfig":
                return "refresh the library cache (ldconfig)"
            case _:
                return f"{self.kind} {self.path}"


class Record(Frozen):
    """What provision wrote outside of the store, so that it knows its own files again.

    Attributes:
        files: Checksums of what a file may hold, by its path on the host: what was written, and
            while that happens also what was there before.
        library_cache: The entry that the host's library cache was refreshed for.
    """

    files: dict[str, tuple[Sha256, ...]] = Field(default_factory=dict)
    library_cache: str | None = None


def plan(layout: Layout, manifest: Manifest, *, replace: bool = False) -> list[Change]:
    """Return what must change so that an entry is the one in use; nothing if it is already.

    Args:
        layout: The driver's places.
        manifest: The entry's.
        replace: Replace files that somebody else wrote, keeping a copy.

    Raises:
        ProvisionError: Somebody else wrote or changed a file that has to be replaced.
    """
    record = _load_record(layout)
    short = manifest.pin.short_digest
    changes: list[Change] = []
    if not layout.entry(short).is_dir():
        changes.append(Change("unpack", layout.entry(short)))
    wanted = {
        layout.vendor_config: vendor_config(layout, manifest),
        layout.loader_config: loader_config(layout, manifest),
        layout.modprobe_config: modprobe_config(layout, manifest),
    }
    files = [c for path, text in wanted.items() for c in _file_changes(layout, record, path, text)]
    strangers = [change.path for change in files if change.kind == "save"]
    if strangers and not replace:
        raise _not_ours(strangers)
    changes += [change for change in files if change.kind == "save"]
    changes += _link_changes(layout, short)
    changes += [change for change in files if change.kind != "save"]
    has_libraries = wanted[layout.loader_config] is not None
    is_stale = (has_libraries or record.library_cache) and record.library_cache != short
    if is_stale and _is_running_host(layout):
        changes.append(Change("ldconfig", Path("/etc/ld.so.cache"), short))
    return changes


def apply(
    layout: Layout, changes: Iterable[Change], *, on_change: Callable[[Change], None]
) -> None:
    """Make changes in their order; the caller holds the driver's lock and has unpacked the entry.

    Args:
        layout: The driver's places.
        changes: From ``plan``.
        on_change: Called before each.

    Raises:
        OSError: A file can't be written.
        ProvisionError: ldconfig failed.
    """
    for change in changes:
        if change.kind == "unpack":
            continue
        on_change(change)
        match change.kind:
            case "save":
                write_atomic(Path(change.value), change.path.read_bytes(), mode=0o600)
            case "switch":
                switch_symlink(change.path, change.value)
            case "write":
                _write(layout, change.path, change.value)
            case "remove":
                change.path.unlink()
                sync_directory(change.path.parent)
            case "ldconfig":
                run(["ldconfig"], why="let the host's programs find the driver's libraries")
                record = _load_record(layout)
                _store_record(layout, record.model_copy(update={"library_cache": change.value}))


def _is_running_host(layout: Layout) -> bool:
    """Whether this is the root of the machine that runs this: the only one ldconfig is for."""
    return layout.root.resolve() == Path("/")


def _file_changes(layout: Layout, record: Record, path: Path, text: str | None) -> list[Change]:
    """Return how a file becomes what it shall be; None: it shall not exist."""
    there = path.read_bytes() if path.exists() else None
    if there == (None if text is None else text.encode()) and not path.is_symlink():
        return []
    change = Change("remove", path) if text is None else Change("write", path, text)
    if there is None:
        return [change]
    digest = hashlib.sha256(there).hexdigest()
    if digest in record.files.get(layout.on_host(path), ()):
        return [change]
    return [Change("save", path, str(layout.saved / f"{path.name}.{digest[:12]}")), change]


def _link_changes(layout: Layout, short: str) -> list[Change]:
    before = str(layout.current.readlink()) if layout.current.is_symlink() else None
    if before == short:
        return []
    changes = [Change("switch", layout.current, short)]
    if before is not None and layout.entry(before).is_dir():
        changes.insert(0, Change("switch", layout.previous, before))
    return changes


def _write(layout: Layout, path: Path, text: str) -> None:
    """Write a file, noting beforehand what it may hold if this ends in the middle."""
    name = layout.on_host(path)
    record = _load_record(layout)
    there = [hashlib.sha256(path.read_bytes()).hexdigest()] if path.exists() else []
    new = hashlib.sha256(text.encode()).hexdigest()
    known = tuple(digest for digest in record.files.get(name, ()) if digest in there)
    files = {**record.files, name: (*known, new)}
    _store_record(layout, record.model_copy(update={"files": files}))
    write_atomic(path, text)


def _load_record(layout: Layout) -> Record:
    return load_json(layout.record, Record) if layout.record.exists() else Record()


def _store_record(layout: Layout, record: Record) -> None:
    write_atomic(layout.record, record.model_dump_json(indent=2) + "\n")


def _not_ours(paths: Iterable[Path]) -> ProvisionError:
    return ProvisionError(
        "A file that has to be written was written or changed by somebody else.",
        resolution="Move your file to another name, or run the command with --replace, which keeps "
        "a copy of it in the driver's part of the store (saved/).",
        details="\n".join(str(path) for path in paths),
    )
