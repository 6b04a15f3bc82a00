"""Reads layers: a thread decompresses them ahead, beside the code that unpacks them.

zlib and the kernel let other threads run while they work, so two processors share the work. The
layers' digests were compared before.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Self

from provision.errors import ProvisionError

# Limit of a layer's unpacked bytes; a driver has some 1.5 GB.
LARGEST_CONTENT = 16 << 30
# Large enough that threads seldom wait for each other, small enough for a processor's cache.
_CHUNK = 256 << 10
# What zlib calls gzip's format, with the largest window: https://zlib.net/manual.html
_GZIP = 16 + zlib.MAX_WBITS
# Chunks that lie between two threads.
_MOST_AHEAD = 8


class LayerContent:
    """The tar stream in a layer, read from its file some chunks ahead.

    Args:
        stored: The layer's file; it is read by another thread until the end of the ``with`` block.
    """

    def __init__(self, stored: IO[bytes], *, is_gzip: bool) -> None:
        self._chunks = _inflated(stored) if is_gzip else _plain(stored)
        self._left = LARGEST_CONTENT
        self._rest = b""
        self._reader = ThreadPoolExecutor(1)
        self._ahead: deque[Future[bytes]] = deque()

    def __enter__(self) -> Self:
        for _ in range(_MOST_AHEAD):
            self._ahead.append(self._reader.submit(self._next))
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.shutdown(cancel_futures=True)

    def read(self, size: int) -> bytes:
        """Return the next bytes, ``size`` at most; empty at the end."""
        data = self._rest or self._chunk()
        self._rest = data[size:]
        return data[:size]

    def finish(self) -> None:
        """Read the bytes after the archive's end, which must be valid too."""
        while self.read(_CHUNK):
            pass

    def _chunk(self) -> bytes:
        data = self._ahead.popleft().result()
        self._ahead.append(self._reader.submit(self._next))
        return data

    def _next(self) -> bytes:
        """Read a chunk; one thread does that."""
        try:
            data = next(self._chunks, b"")
        except (EOFError, zlib.error) as error:
            raise damaged(str(error)) from error
        self._left -= len(data)
        if self._left < 0:
            raise too_much()
        return data


def _plain(stored: IO[bytes]) -> Iterator[bytes]:
    while data := stored.read(_CHUNK):
        yield data


def _inflated(stored: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of gzip members that follow each other, in chunks.

    Python 3.11's own reader takes 8 KiB at a time, which costs some 7 percent more, and makes
    threads wait for each other.
    """
    member = zlib.decompressobj(_GZIP)
    data = b""
    while data := data or stored.read(_CHUNK):
        if member.eof:
            # Members may be followed by zeros, as those on tapes are.
            data = data.lstrip(b"\0")
            member = zlib.decompressobj(_GZIP) if data else member
            continue
        if content := member.decompress(data, _CHUNK):
            yield content
        data = member.unused_data if member.eof else member.unconsumed_tail
    if not member.eof:
        raise EOFError("it ends too early")


def too_much() -> ProvisionError:
    """Return the error for a layer that unpacks to too many bytes."""
    return ProvisionError(
        f"A layer of the image unpacks to more than {LARGEST_CONTENT} bytes.",
        resolution="This is no artifact image that provision built: don't use it.",
    )


def damaged(details: str) -> ProvisionError:
    """Return the error for a layer that can't be decompressed; ``details`` says why."""
    return ProvisionError(
        "A layer of the image can't be decompressed.",
        resolution="Have the image pushed again by those who build it: provision registry push"
        " IMAGE",
        details=details or None,
    )
