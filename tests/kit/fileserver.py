"""Files over HTTP on the loopback interface: downloads without a network."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BytesIO
    from pathlib import Path
    from ssl import SSLContext
    from typing import BinaryIO

__all__ = ["Mirror", "served", "serving"]


# Seconds within which the server notices that it has to stop.
_POLL = 0.01
# Bytes of a file that a mirror sends before it stalls.
_FIRST = 4096


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        """Say nothing: a test's output is for what went wrong."""


@dataclass
class Mirror:
    """A server whose content may change while it serves, and that says what was asked for."""

    # What it serves, from the next request on.
    folder: Path
    # The paths of all requests so far, in their order.
    asked: list[str] = field(default_factory=list)
    # End of a path whose file it sends the first bytes of, and then no more until `goes_on` is set;
    # None: none.
    stalls_at: str | None = None
    # Set as soon as it waits in the middle of a file.
    stalled: Event = field(default_factory=Event)
    # Ends such a wait.
    goes_on: Event = field(default_factory=Event)
    url: str = ""

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve; yields the URL, without a slash at the end."""
        with serving(type("_Of", (_MirrorHandler,), {"mirror": self})) as url:
            self.url = url
            try:
                yield url
            finally:
                self.goes_on.set()

    def stall(self, end: str) -> None:
        """Stop in the middle of files whose path has this end, until `go_on`."""
        self.stalled.clear()
        self.goes_on.clear()
        self.stalls_at = end

    def go_on(self) -> None:
        """Send what is held back, and all later files as a whole."""
        self.stalls_at = None
        self.goes_on.set()


class _MirrorHandler(_Quiet):
    mirror: ClassVar[Mirror]

    def send_head(self) -> BytesIO | BinaryIO | None:
        """Look a file up in the folder that is served now."""
        self.mirror.asked.append(self.path)
        self.directory = str(self.mirror.folder)
        return super().send_head()

    def do_GET(self) -> None:
        """Send a file, or its first bytes."""
        file = self.send_head()
        if file is None:
            return
        # The client may have been killed.
        with file, suppress(OSError):
            if self.mirror.stalls_at is not None and self.path.endswith(self.mirror.stalls_at):
                self.wfile.write(file.read(_FIRST))
                self.wfile.flush()
                self.mirror.stalled.set()
                self.mirror.goes_on.wait()
            shutil.copyfileobj(file, self.wfile)


@contextmanager
def served(folder: Path, tls: SSLContext | None = None) -> Iterator[str]:
    """Serve `folder`, over HTTPS with `tls`; yields its URL, without a slash at the end."""
    with serving(partial(_Quiet, directory=str(folder)), tls) as url:
        yield url


@contextmanager
def serving(
    handler: Callable[..., BaseHTTPRequestHandler], tls: SSLContext | None = None
) -> Iterator[str]:
    """Answer on the loopback interface; yields the URL, without a slash at the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        # Not when a connection is accepted: a client that says nothing would keep the others out.
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = Thread(target=server.serve_forever, args=(_POLL,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
