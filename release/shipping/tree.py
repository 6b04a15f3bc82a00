"""Trees of files as packages have them: content, permissions and links, and nothing of the machine.

Paths are relative to the root of the host that a package is installed on.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_PROGRAM = 0o755
_PLAIN = 0o644


@dataclass(frozen=True, slots=True)
class File:
    """A regular file."""

    content: bytes
    mode: int = _PLAIN


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is there although nothing lies in it."""


Entry = File | Link | Folder
Tree = Mapping[str, Entry]


def read(path: Path) -> File:
    """Return a file of this machine: whether it can be run is all that counts of its mode."""
    return File(path.read_bytes(), _PROGRAM if os.access(path, os.X_OK) else _PLAIN)


def text(content: str, *, program: bool = False) -> File:
    """Return a file with a text."""
    return File(content.encode(), _PROGRAM if program else _PLAIN)


def compressed(content: str | bytes) -> File:
    """Return a file compressed as Debian wants manual pages and changelogs."""
    data = content.encode() if isinstance(content, str) else content
    return File(gzip.compress(data, compresslevel=9, mtime=0))


def under(folder: str, tree: Tree) -> dict[str, Entry]:
    """Return a tree below a folder."""
    return {str(PurePosixPath(folder, name)): entry for name, entry in tree.items()}


def size(tree: Tree) -> int:
    """Return the bytes of all files."""
    return sum(len(entry.content) for entry in tree.values() if isinstance(entry, File))


def write(tree: Tree, folder: Path, epoch: int) -> None:
    """Write a tree into a folder, with fixed permissions and times."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, entry in sorted(tree.items()):
        path = folder / name
        (path if isinstance(entry, Folder) else path.parent).mkdir(parents=True, exist_ok=True)
        if isinstance(entry, Link):
            path.symlink_to(entry.target)
        elif isinstance(entry, File):
            path.write_bytes(entry.content)
            path.chmod(entry.mode)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.chmod(_PROGRAM)
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    folder.chmod(_PROGRAM)
    os.utime(folder, (epoch, epoch))


def write_tar(tree: Tree, path: Path, epoch: int) -> None:
    """Write a tree as a ``.tar.gz``; the same tree gives the same bytes."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member, content in _members(tree, epoch):
            archive.addfile(member, io.BytesIO(content))


def read_tar(path: Path) -> dict[str, Entry]:
    """Return what a ``.tar.gz`` has; its times and owners do not count."""
    found: dict[str, Entry] = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None:
                mode = _PROGRAM if member.mode & 0o100 else _PLAIN
                found[member.name] = File(stream.read(), mode)
            elif member.issym():
                found[member.name] = Link(member.linkname)
    return found


def _members(tree: Tree, epoch: int) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for name, entry in sorted(tree.items()):
        member = tarfile.TarInfo(name)
        member.mtime = epoch
        content = b""
        match entry:
            case File():
                content, member.mode, member.size = entry.content, entry.mode, len(entry.content)
            case Link():
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.target, 0o777
            case Folder():
                member.type, member.mode = tarfile.DIRTYPE, _PROGRAM
        yield member, content
