"""HTTP sessions with a time limit for each whole answer.

The library's time limit is for one piece of an answer. A server that sends a byte a minute never
exceeds it, nor does one whose interim answers (``100 Continue``), header lines, chunk extensions or
trailers have no end: Python's ``http.client`` reads those without returning. So all time that is
spent waiting for an answer counts together here, and lines without content between them are
limited.
"""

from __future__ import annotations

import io
import time
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from provision.fetch import authorities_of

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# An answer may keep its reader waiting for so many seconds, and for the time of a slow line.
_WAITING_S = 120.0
_SLOWEST = 4 << 10
# http.client takes 100 header lines; a chunk has one line, and the trailers are few.
_MOST_LINES = 1000
_LONGEST_LINES = 256 << 10


class _TimedSocket(io.RawIOBase):
    def __init__(self, inner: io.RawIOBase) -> None:
        super().__init__()
        self._inner = inner
        self._waited_s = 0.0
        self._received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        begun = time.monotonic()
        count = self._inner.readinto(buffer)
        self._waited_s += time.monotonic() - begun
        self._received += count or 0
        if self._waited_s > _WAITING_S + self._received / _SLOWEST:
            # Not a TimeoutError: the library replaces the text of those.
            raise HTTPException(f"{self._received} bytes of an answer took {self._waited_s:.0f} s")
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()


class _Lines(io.BufferedReader):
    """A stream in which only so many lines may follow each other without content."""

    _count = _size = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        self._count += 1
        self._size += len(line)
        if self._count > _MOST_LINES or self._size > _LONGEST_LINES:
            raise HTTPException("an answer has too many lines without content")
        return line

    def read(self, size: int | None = -1, /) -> bytes:
        self._count = self._size = 0
        return super().read(size)

    def read1(self, size: int = -1, /) -> bytes:
        self._count = self._size = 0
        return super().read1(size)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._count = self._size = 0
        return super().readinto(buffer)


class _Response(HTTPResponse):
    """An answer as ``http.client`` reads it, within these limits."""

    def __init__(self, *args: Any, **more: Any) -> None:  # noqa: ANN401 - as the class above
        super().__init__(*args, **more)
        self.fp = _Lines(_TimedSocket(self.fp.detach()))


class _Connection(HTTPConnection):
    response_class = _Response


class _SecureConnection(HTTPSConnection):
    response_class = _Response


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_POOLS = {"http": _Pool, "https": _SecurePool}


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **more: Any) -> None:  # noqa: ANN401 - as the class above
        super().init_poolmanager(*args, **more)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **more: Any) -> Any:  # noqa: ANN401 - as the class above
        manager = super().proxy_manager_for(proxy, **more)
        # A SOCKS proxy has connections of its own.
        if not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = _POOLS
        return manager


def bounded_session() -> requests.Session:
    """Return a new session."""
    session = requests.Session()
    if (authorities := authorities_of(Path("/"))) is not None:
        session.verify = str(authorities)
    for scheme in ("http", "https"):
        session.mount(f"{scheme}://", _Adapter())
    return session
