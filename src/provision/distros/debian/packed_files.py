"""Packages and Sources files as archives have them: packed, and read up to a limit."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from provision.distros.debian.release_file import IndexFile
from provision.errors import ProvisionError

# Bytes of one file; the largest that are known have some 20 MB packed and 100 MB unpacked.
MAX_PACKED = 256 << 20
MAX_TEXT = 512 << 20
_CHUNK = 4 << 20
_CUT = "it ends too early"


def read_packed(path: Path, index: IndexFile) -> bytes:
    """Return the text of a Packages or Sources file; arguments and errors as ``read_chunks``."""
    return b"".join(read_chunks(path, index))


def read_chunks(path: Path, index: IndexFile) -> Iterator[bytes]:
    """Yield the text of a Packages or Sources file, never more than it may have.

    While the caller works on a chunk, the next one is unpacked in a thread: Python's lock is free
    meanwhile.

    Args:
        path: The file, as it was downloaded.
        index: What the Release file says about it.

    Raises:
        ProvisionError: It is damaged, or larger than the Release file says.
        OSError: It can't be read.
    """
    limit = min(MAX_TEXT if index.unpacked_size is None else index.unpacked_size, MAX_TEXT)
    chunks = _unpacked(path.read_bytes(), Path(index.path).suffix, min(_CHUNK, limit + 1))
    length = 0
    with ThreadPoolExecutor(1) as pool:
        try:
            following = pool.submit(next, chunks, None)
            while (chunk := following.result()) is not None:
                length += len(chunk)
                if length > limit:
                    raise _published(index, f"is larger than {limit} bytes when it is unpacked")
                following = pool.submit(next, chunks, None)
                yield chunk
        except (lzma.LZMAError, zlib.error, EOFError) as error:
            raise _published(index, f"can't be unpacked: {error}") from error


def _published(index: IndexFile, what: str) -> ProvisionError:
    return ProvisionError(
        f"The package index '{index.path}' {what}.",
        resolution="The archive published it like that: try again later, or use another mirror.",
    )


def _unpacked(data: bytes, suffix: str, size: int) -> Iterator[bytes]:
    """Yield the content of a file in pieces of ``size`` bytes at most.

    Such files may be made of several, one after the other, with zeros between them.

    Raises:
        lzma.LZMAError: It is damaged.
        zlib.error: It is damaged.
        EOFError: It ends too early.
    """
    unpack = _UNPACK.get(suffix)
    if unpack is None:
        yield from (data[at : at + size] for at in range(0, len(data), size))
        return
    # At least one: an empty file is damaged.
    data = yield from unpack(data, size)
    while data := data.lstrip(b"\0"):
        data = yield from unpack(data, size)


def _unxz(data: bytes, size: int) -> Generator[bytes, None, bytes]:
    """Yield the content of the first of the files in ``data``; returns what follows it."""
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
    while not decoder.eof:
        if not data and decoder.needs_input:
            raise EOFError(_CUT)
        yield decoder.decompress(data, size)
        data = b""
    return decoder.unused_data


def _gunzip(data: bytes, size: int) -> Generator[bytes, None, bytes]:
    """Do the same with gzip: https://docs.python.org/3/library/zlib.html#zlib.decompressobj."""
    decoder = zlib.decompressobj(wbits=31)
    while not decoder.eof:
        if not data:
            raise EOFError(_CUT)
        yield decoder.decompress(data, size)
        data = decoder.unconsumed_tail
    return decoder.unused_data


_UNPACK = {".xz": _unxz, ".gz": _gunzip}
