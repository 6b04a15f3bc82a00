"""Paths of a host below its root, which is a boundary: no link leads out of it.

An absolute link of a mounted disk or an unpacked image means a file of that system. The kernel,
which knows only this machine's root, would follow it to the running host. So whatever reads or
writes below a root that may be another host's looks the path up here first (docs/decisions/22).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePath, PurePosixPath

# As many as the kernel follows: path_resolution(7).
_MOST_LINKS = 40
_HERE = ("", ".")


def in_root(root: Path, name: str | PurePath, *, follow: bool = True) -> Path:
    """Return where a path of a host lies, with each link resolved as that host itself would.

    Absolute links begin at the root again, and ``..`` does not climb above it. What is missing
    stays as it was named. The running host's own root needs no such care and costs nothing.

    Args:
        root: Root of the host.
        name: The path, absolute on that host or relative to its root.
        follow: Whether the last part is resolved too; not for what reads, replaces or removes a
            link itself.

    Raises:
        OSError: The links go round in circles (``ELOOP``).
    """
    if root == Path("/"):
        return root / name
    left = _parts(str(name))
    done: list[str] = []
    followed = 0
    while left:
        part = left.pop()
        if part == "..":
            del done[-1:]
            continue
        target = None if not left and not follow else _target(root.joinpath(*done, part))
        if target is None:
            done.append(part)
            continue
        followed += 1
        if followed > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(root / str(name).lstrip("/")))
        if target.startswith("/"):
            done.clear()
        left += _parts(target)
    return root.joinpath(*done)


def glob_in_root(root: Path, pattern: str) -> list[PurePosixPath]:
    """Return the paths of a host that match a pattern, sorted, relative to its root.

    They are as the host itself calls them; ``in_root`` says where each lies.

    Args:
        root: Root of the host.
        pattern: Relative to it; ``*``, ``?`` and ``[…]`` stand for names in one folder, hidden
            ones included where the pattern's part begins with a dot.
    """
    found = [PurePosixPath()]
    for part in PurePosixPath(pattern).parts:
        found = [path for folder in found for path in _matching(root, folder, part)]
    return sorted(found)


def holds_something(path: Path) -> bool:
    """Return whether there is a file, or a folder that is not empty.

    A host that is not registered may have the empty folder of its subscriptions.
    """
    if not path.is_dir():
        return path.exists()
    try:
        return any(path.iterdir())
    except PermissionError:
        # Others may look into it.
        return True


def _matching(root: Path, folder: PurePosixPath, part: str) -> Iterator[PurePosixPath]:
    if not set(part) & set("*?["):
        if os.path.lexists(in_root(root, folder / part, follow=False)):
            yield folder / part
        return
    try:
        names = [path.name for path in in_root(root, folder).iterdir()]
    except OSError:
        # Missing, no folder, or not to be read: then nothing in it matches.
        return
    for name in names:
        if fnmatchcase(name, part) and (part.startswith(".") or not name.startswith(".")):
            yield folder / name


def _parts(path: str) -> list[str]:
    """Return the parts of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in _HERE]


def _target(path: Path) -> str | None:
    """Return what a link holds; None for anything else, which opening it shows."""
    try:
        return str(path.readlink())
    except OSError:
        return None
