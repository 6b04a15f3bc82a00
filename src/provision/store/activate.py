"""Puts a store entry to use: decides first what has to change, then changes only that.

Every step is repeatable and the whole is decided anew by each run, so a run that was killed
anywhere is finished by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from provision.files import switch_symlink
from provision.manifest import Manifest
from provision.run import run
from provision.store.layout import Layout
from provision.store.managed_files import Change, Ledger, refuse_strangers
from provision.store.vendor_file import loader_config, modprobe_config, vendor_config

_STRANGERS = (
    "Move your file to another name, or run the command with --replace, which keeps a copy of it in"
    " the driver's part of the store (saved/)."
)


def plan(layout: Layout, manifest: Manifest, *, replace: bool = False) -> list[Change]:
    """Return what must change so that an entry is the one in use; nothing if it is already.

    Args:
        layout: The driver's places.
        manifest: The entry's.
        replace: Replace files that somebody else wrote, keeping a copy.

    Raises:
        ProvisionError: Somebody else wrote or changed a file that has to be replaced.
    """
    ledger = _ledger(layout)
    record = ledger.load()
    short = manifest.pin.short_digest
    changes: list[Change] = []
    if not layout.entry(short).is_dir():
        changes.append(Change("unpack", layout.entry(short)))
    wanted = {
        layout.vendor_config: vendor_config(layout, manifest),
        layout.loader_config: loader_config(layout, manifest),
        layout.modprobe_config: modprobe_config(layout, manifest),
    }
    files = [c for path, text in wanted.items() for c in ledger.file_changes(record, path, text)]
    if not replace:
        refuse_strangers(files, _STRANGERS)
    changes += [change for change in files if change.kind == "save"]
    changes += _link_changes(layout, short)
    changes += [change for change in files if change.kind != "save"]
    has_libraries = wanted[layout.loader_config] is not None
    is_stale = (has_libraries or record.library_cache) and record.library_cache != short
    if is_stale and _is_running_host(layout):
        changes.append(Change("ldconfig", Path("/etc/ld.so.cache"), short))
    return changes


def plan_removal(layout: Layout) -> list[Change]:
    """Return what must change so that no entry is in use: the files that we wrote go, and links.

    What somebody else changed meanwhile stays: it is theirs.
    """
    ledger = _ledger(layout)
    record = ledger.load()
    changes: list[Change] = []
    for path in (layout.vendor_config, layout.loader_config, layout.modprobe_config):
        found = ledger.file_changes(record, path, None)
        changes += found if all(change.kind == "remove" for change in found) else []
    links = [link for link in (layout.current, layout.previous) if link.is_symlink()]
    changes += [Change("remove", link) for link in links]
    if record.library_cache is not None and _is_running_host(layout):
        changes.append(Change("ldconfig", Path("/etc/ld.so.cache"), ""))
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
    ledger = _ledger(layout)
    for change in changes:
        if change.kind == "unpack":
            continue
        on_change(change)
        match change.kind:
            case "switch":
                switch_symlink(change.path, change.value)
            case "ldconfig":
                run(["ldconfig"], why="let the host's programs find the driver's libraries")
                record = ledger.load()
                ledger.store(record.model_copy(update={"library_cache": change.value or None}))
            case _:
                ledger.make(change)


def _is_running_host(layout: Layout) -> bool:
    """Whether this is the root of the machine that runs this: the only one ldconfig is for."""
    return layout.root.resolve() == Path("/")


def _link_changes(layout: Layout, short: str) -> list[Change]:
    before = str(layout.current.readlink()) if layout.current.is_symlink() else None
    if before == short:
        return []
    changes = [Change("switch", layout.current, short)]
    if before is not None and layout.entry(before).is_dir():
        changes.insert(0, Change("switch", layout.previous, before))
    return changes


def _ledger(layout: Layout) -> Ledger:
    return Ledger(layout.root, layout.record, layout.saved)
