"""Packages and Sources files as archives have them: packed, and read up to a limit."""

from __future__ import annotations

import gzip
import lzma
import zlib
from io import BufferedIOBase
from pathlib import Path

from provision.distros.debian.release_file import IndexFile
from provision.errors import ProvisionError

# Bytes of one file; the largest that are known have some 20 MB packed and 100 MB unpacked.
MAX_PACKED = 256 << 20
MAX_TEXT = 512 << 20


def read_packed(path: Path, index: IndexFile) -> bytes:
    """Return the text of a Packages or Sources file, never more than it may have.

    Args:
        path: The file, as it was downloaded.
        index: What the Release file says about it.

    Raises:
        ProvisionError: It is damaged, or larger than the Release file says.
        OSError: It can't be read.
    """
    limit = min(MAX_TEXT if index.unpacked_size is None else index.unpacked_size, MAX_TEXT)
    try:
        with _opened(path, Path(index.path).suffix) as stream:
            text = stream.read(limit + 1)
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ProvisionError(
            f"The package index '{index.path}' can't be unpacked: {error}.",
            resolution="The archive published it like that: try again later, or use another"
            " mirror.",
        ) from error
    if len(text) > limit:
        raise ProvisionError(
            f"The package index '{index.path}' is larger than {limit} bytes when it is unpacked.",
            resolution="The archive published it like that: try again later, or use another"
            " mirror.",
        )
    return text


def _opened(path: Path, suffix: str) -> BufferedIOBase:
    if suffix == ".xz":
        return lzma.open(path)
    return gzip.open(path) if suffix == ".gz" else path.open("rb")
