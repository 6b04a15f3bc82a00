"""A build context as a tar file: the same files give the same bytes."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from provision.errors import ProvisionError


def pack(files: Mapping[str, bytes | Path]) -> IO[bytes]:
    """Return a tar file of regular files, sorted by path, without owner, date or mode of anyone.

    Args:
        files: Content by path relative to the context, or the file that has it.

    Raises:
        ProvisionError: A path is too long for a tar file.
        OSError: A file can't be read, or the disk is full.
    """
    # Contexts with packages have some hundred MB.
    large = any(isinstance(content, Path) for content in files.values())
    # Closed by its reader.
    buffer: IO[bytes] = tempfile.TemporaryFile() if large else io.BytesIO()  # noqa: SIM115 - returned
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.mode = 0o644
            try:
                if isinstance(content, Path):
                    entry.size = content.stat().st_size
                    with content.open("rb") as stream:
                        archive.addfile(entry, stream)
                else:
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
            except ValueError as error:
                raise ProvisionError(
                    f"'{path}' can't go into the build context: {error}."
                ) from error
    buffer.seek(0)
    return buffer
