"""A build context as a tar file: the same files give the same bytes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from typing import IO

from provision.errors import ProvisionError


def pack(files: Mapping[str, bytes]) -> IO[bytes]:
    """Return a tar file of regular files, sorted by path, without owner, date or mode of anyone.

    Args:
        files: Content by path relative to the context.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o644
            try:
                archive.addfile(entry, io.BytesIO(content))
            except ValueError as error:
                raise ProvisionError(
                    f"'{path}' can't go into the build context: {error}."
                ) from error
    buffer.seek(0)
    return buffer
