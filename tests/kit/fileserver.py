"""Files over HTTP on the loopback interface: downloads without a network."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Event, Thread
from typing import BinaryIO, ClassVar

import trustme

# Seconds within which the server notices that it has to stop.
_POLL = 0.01
# Bytes of a file that a mirror sends before it stalls.
_FIRST = 4096


class _Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        """Say nothing: a test's output is for what went wrong."""


class Answering(_Quiet):
    """What a server of a few answers is made from."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Send an answer; the names of headers have underscores."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Files(_Quiet, SimpleHTTPRequestHandler):
    """Sends files of a folder."""


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


class _MirrorHandler(_Files):
    mirror: ClassVar[Mirror]

    def send_head(self) -> BytesIO | BinaryIO | None:
        self.mirror.asked.append(self.path)
        self.directory = str(self.mirror.folder)
        return super().send_head()

    def do_GET(self) -> None:
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


@dataclass(frozen=True, slots=True)
class Guarded:
    """A server that only some may read."""

    # The certificate that vouches for it, which no one else knows.
    authority: Path
    # Its own certificate and key, in one file.
    certificate: Path
    # User and password, as `user:password`.
    login: str

    def tls(self, *, clients: bool = False) -> ssl.SSLContext:
        """What a server speaks TLS with; `clients`: only with those that the authority knows."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.authority)
        return context


def guard(folder: Path, login: str) -> Guarded:
    """Make a private authority and a server of 127.0.0.1 that it vouches for."""
    made = Guarded(folder / "authority.pem", folder / "server.pem", login)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(made.authority)
    server = authority.issue_cert("127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(made.certificate)
    return made


@contextmanager
def served(folder: Path, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve `folder`, over HTTPS with `tls`; yields its URL, without a slash at the end."""
    with serving(partial(_Files, directory=str(folder)), tls) as url:
        yield url


@contextmanager
def serving(
    handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
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
