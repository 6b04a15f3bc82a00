"""One file out of a .deb, without installing or unpacking the rest.

Source: deb(5): an ar(5) archive of ``debian-binary``, ``control.tar*`` and ``data.tar*``.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from provision.errors import NotFoundError, ProvisionError
from provision.run import run

_MAGIC = b"!<arch>\n"
_HEADER = 60
_END = b"`\n"
_ZSTD = ".zst"
# The configuration of a kernel has some 300 kB.
MAX_FILE = 16 << 20


def read_deb(path: Path, name: str, *, limit: int = MAX_FILE) -> bytes:
    """Return the content of one plain file in a package.

    Args:
        path: The package.
        name: Absolute path of the file, as the package installs it.
        limit: Bytes that it may have.

    Raises:
        NotFoundError: The package has no such plain file, or the program ``zstd`` is missing for
            a package that is packed with it.
        ProvisionError: It is no package, damaged, or the file is larger than the limit.
    """
    try:
        with _data(path) as archive:
            return _read(archive, path, name, limit)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ProvisionError(
            f"The package '{path.name}' can't be read: {error}.",
            resolution=f"Delete '{path}'; it is downloaded again.",
        ) from error


def _read(archive: tarfile.TarFile, path: Path, name: str, limit: int) -> bytes:
    for entry in archive:
        if entry.name.removeprefix(".") == name and entry.isreg():
            if entry.size > limit:
                raise ProvisionError(
                    f"'{name}' in the package '{path.name}' has {entry.size} bytes; at most {limit}"
                    " are read."
                )
            stream = archive.extractfile(entry)
            return stream.read() if stream else b""
    raise NotFoundError(f"The package '{path.name}' has no file '{name}'.")


@contextmanager
def _data(path: Path) -> Iterator[tarfile.TarFile]:
    """Open the archive of a package's files, to be read once from its start."""
    with path.open("rb") as stream:
        suffix, size = _seek_data(stream, path)
        if suffix != _ZSTD:
            # "r|*" reads ahead, but never past the end of a compressed stream.
            with tarfile.open(fileobj=stream, mode="r|*") as archive:
                yield archive
            return
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            packed, plain = Path(folder, "data.tar.zst"), Path(folder, "data.tar")
            with packed.open("wb") as target:
                shutil.copyfileobj(_Part(stream, size), target)
            # Python has had zstd of its own only since 3.14.
            why = f"read the package {path.name}"
            run(["zstd", "--decompress", "--quiet", "-o", plain, packed], why=why)
            with tarfile.open(plain) as archive:
                yield archive


class _Part:
    """The next bytes of a stream, and no more."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._stream.read(wanted)
        self._left -= len(data)
        return data


def _seek_data(stream: IO[bytes], path: Path) -> tuple[str, int]:
    """Go to the start of ``data.tar*``; return its ending (``.xz``) and its size in bytes."""
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise ProvisionError(f"'{path.name}' is no Debian package.")
    while header := stream.read(_HEADER):
        name, digits = header[:16].decode(errors="replace").strip(" /"), header[48:58].strip()
        if len(header) < _HEADER or header[58:] != _END or not digits.isdigit():
            break
        size = int(digits)
        if name.startswith("data.tar"):
            return name.removeprefix("data.tar"), size
        # Members begin at even offsets.
        stream.seek(size + size % 2, 1)
    raise ProvisionError(f"The package '{path.name}' is damaged: it has no files in it.")
