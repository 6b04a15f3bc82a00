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
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from provision.fetch.http import authorities_of

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# An answer may keep its reader waiting for so many seconds, and for the time of a slow line.
_WAITING_S = 120.0
_SLOWEST = 4 << 10
# http.client takes 100 header lines; a chunk has one line, and the trailers are few.
_MOST_LINES = 1000
_LONGEST_LINES = 256 << 10


class _TimedSocket(io.RawIOBase):
    def __init__(self, inner: io.RawIOBase, waiting_s: float, clock: Callable[[], float]) -> None:
        super().__init__()
        self._inner = inner
        self._limit_s = waiting_s
        self._clock = clock
        self._waited_s = 0.0
        self._received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        begun = self._clock()
        count = self._inner.readinto(buffer)
        self._waited_s += self._clock() - begun
        self._received += count or 0
        if self._waited_s > self._limit_s + self._received / _SLOWEST:
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


class BoundedResponse(HTTPResponse):
    """An answer as ``http.client`` reads it, within these limits.

    Args:
        waiting_s: Seconds that all of it may be waited for, besides the time of a slow line.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - as the class above
        waiting_s: float = _WAITING_S,
        clock: Callable[[], float] = time.monotonic,
        **more: Any,  # noqa: ANN401 - as the class above
    ) -> None:
        super().__init__(*args, **more)
        raw = self.fp.detach()
        self.fp = _Lines(_TimedSocket(raw, waiting_s, clock))


class _BoundedAdapter(HTTPAdapter):
    def __init__(self, waiting_s: float) -> None:
        self._pools = _pools(waiting_s)
        super().__init__()

    def init_poolmanager(self, *args: Any, **more: Any) -> None:  # noqa: ANN401 - as the class above
        super().init_poolmanager(*args, **more)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **more: Any) -> Any:  # noqa: ANN401 - as the class above
        manager = super().proxy_manager_for(proxy, **more)
        # A SOCKS proxy has connections of its own.
        if not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = self._pools
        return manager


def _pools(waiting_s: float) -> dict[str, type[HTTPConnectionPool]]:

    class Response(BoundedResponse):
        def __init__(self, *args: Any, **more: Any) -> None:  # noqa: ANN401 - as the class above
            super().__init__(*args, waiting_s=waiting_s, **more)

    class Connection(HTTPConnection):
        response_class = Response

    class SecureConnection(HTTPSConnection):
        response_class = Response

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    return {"http": Pool, "https": SecurePool}


def bounded_session() -> requests.Session:
    """Return a new session."""
    session = requests.Session()
    if (authorities := authorities_of(Path("/"))) is not None:
        session.verify = str(authorities)
    for scheme in ("http", "https"):
        session.mount(f"{scheme}://", _BoundedAdapter(_WAITING_S))
    return session
