"""Packs a tree: the same tree gives the same bytes."""

from __future__ import annotations

import gzip
import os
import tarfile
import tempfile
from pathlib import Path

from provision.files import sync_directory

_LEVEL = 9


def pack_tree(tree: Path, prefix: str, target: Path) -> None:
    """Write a gzip'd tar archive that is unpacked at ``/``; it appears when it is complete.

    Folders above the prefix are left out: on some hosts ``/opt`` is a link, which an archive that
    has it as a folder would replace.

    Args:
        tree: What becomes ``prefix``.
        prefix: Absolute path on hosts.
        target: The archive.

    Raises:
        OSError: The folder can't be written, or the disk is full.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            with (
                gzip.GzipFile("", "wb", _LEVEL, stream, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                for path in [tree, *sorted(tree.rglob("*"))]:
                    _add(archive, path, f"{prefix[1:]}/{path.relative_to(tree)}".removesuffix("/."))
            stream.flush()
            os.fsync(stream.fileno())
        draft.chmod(0o644)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    entry = archive.gettarinfo(path, name)
    # Hard links are files of their own: their order would depend on the file system.
    if entry.islnk():
        entry.type, entry.size, entry.linkname = tarfile.REGTYPE, path.stat().st_size, ""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    if entry.isreg():
        with path.open("rb") as content:
            archive.addfile(entry, content)
    else:
        archive.addfile(entry)
