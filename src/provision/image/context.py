"""A build context as a tar file: the same files give the same bytes."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from provision.errors import ProvisionError


def pack(files: Mapping[str, bytes], attached: Mapping[str, Path] | None = None) -> IO[bytes]:
    """Return a tar file of regular files, sorted by path, without owner, date or mode of anyone.

    Args:
        files: Content by path relative to the context.
        attached: Files of this machine by path relative to the context.

    Raises:
        ProvisionError: A path is too long for a tar file.
        OSError: An attached file can't be read.
    """
    everything: dict[str, bytes | Path] = {**files, **(attached or {})}
    # The caller closes it.
    buffer = tempfile.TemporaryFile() if attached else io.BytesIO()  # noqa: SIM115
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, content in sorted(everything.items()):
            entry = tarfile.TarInfo(path)
            entry.mode = 0o644
            with _opened(content) as stream:
                entry.size = stream.seek(0, io.SEEK_END)
                stream.seek(0)
                try:
                    archive.addfile(entry, stream)
                except ValueError as error:
                    raise ProvisionError(
                        f"'{path}' can't go into the build context: {error}."
                    ) from error
    buffer.seek(0)
    return buffer


def _opened(content: bytes | Path) -> IO[bytes]:
    return content.open("rb") if isinstance(content, Path) else io.BytesIO(content)
