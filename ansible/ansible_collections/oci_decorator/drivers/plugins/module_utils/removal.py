"""Separates what provision made in a folder from foreign files. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# What provision makes in a driver's part of its store (src/provision/store/layout.py), with the
# drafts of a killed run that entries.py removes. A dot by itself says nothing: admins hide files
# too.
_FILES = r"(?:state|written|serials)\.json"
_OURS = re.compile(
    rf"[0-9a-f]{{12}}|current|previous|kernels|{_FILES}(?:\.unreadable-.*)?|\.?lock|saved"
    rf"|\.(?:partial|removed)-[0-9a-f]{{12}}.*|\.(?:current|previous|{_FILES})\..+"
)
# Beside the drivers.
_OURS_BESIDE = re.compile(r"\.lock|\.provision\.toml|\.\.provision\.toml\..+")
# A folder of the store with any of these belongs to a driver.
_MARKS = ("kernels", "current", "previous", "state.json", "written.json", ".lock")
# Copies of foreign files that were replaced on request: vendor files and units.
_SAVED = "saved"
_UNITS = ".units"
_RECORD = re.compile(r"written\.json(?:\.unreadable-.*)?|\.lock|\.written\.json\..+")


def store_parts(store: Path) -> tuple[list[Path], list[Path]]:
    """Return what provision made in a store, and the foreign files in it.

    Args:
        store: The folder; it may be missing.
    """
    ours: list[Path] = []
    foreign: list[Path] = []
    for path in _entries(store):
        if path.name == _UNITS and path.is_dir():
            _split(path, _RECORD, ours, foreign)
        elif _OURS_BESIDE.fullmatch(path.name):
            ours.append(path)
        elif _is_driver(path):
            _split(path, _OURS, ours, foreign)
        else:
            foreign.append(path)
    return ours, foreign


def emptied(folder: Path, gone: Iterable[Path]) -> list[Path]:
    """Return the folders at and below a folder that are empty after some paths are removed.

    Args:
        folder: The folder; it may be missing.
        gone: What goes, with everything in it.

    Returns:
        The innermost first.
    """
    known = set(gone)
    found: list[Path] = []
    if folder.is_symlink() or not folder.is_dir():
        return found
    for path in _entries(folder):
        if path not in known:
            found += emptied(path, known)
    if all(path in known or path in found for path in _entries(folder)):
        found.append(folder)
    return found


def files_left(folder: Path, gone: Iterable[Path]) -> list[Path]:
    """Return the files below a folder that remain after some paths are removed."""
    known = set(gone)
    left: list[Path] = []
    for path in _entries(folder):
        if path in known:
            continue
        if path.is_dir() and not path.is_symlink():
            left += files_left(path, known)
        else:
            left.append(path)
    return left


def _split(folder: Path, names: re.Pattern[str], ours: list[Path], foreign: list[Path]) -> None:
    for path in _entries(folder):
        if path.name == _SAVED and any(path.iterdir()):
            foreign.extend(_entries(path))
        elif names.fullmatch(path.name):
            ours.append(path)
        else:
            foreign.append(path)


def _is_driver(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    return any((path / name).exists() or (path / name).is_symlink() for name in _MARKS)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
