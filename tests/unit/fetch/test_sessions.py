"""Answers that never end: none of them keeps its reader waiting."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from provision import fetch
from provision.errors import ProvisionError
from provision.fetch import get_small, sessions

Answer = Callable[[socket.socket], None]
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_CASE_S = 20.0


def _endless(stream: socket.socket, piece: bytes, pause: float) -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < _CASE_S:
        stream.sendall(piece)
        time.sleep(pause)


def header_byte_by_byte(stream: socket.socket) -> None:
    stream.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    _endless(stream, b"x", 0.05)


def interim_answers(stream: socket.socket) -> None:
    _endless(stream, b"HTTP/1.1 100 Continue\r\n\r\n" * 50, 0.001)


def trailers(stream: socket.socket) -> None:
    stream.sendall(_CHUNKED + b"2\r\n{}\r\n0\r\n")
    _endless(stream, b"X: y\r\n" * 50, 0.001)


def chunk_extension(stream: socket.socket) -> None:
    stream.sendall(_CHUNKED + b"2;")
    _endless(stream, b"x", 0.05)


def body_byte_by_byte(stream: socket.socket) -> None:
    stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n")
    _endless(stream, b"x", 0.05)


ENDLESS = [header_byte_by_byte, interim_answers, trailers, chunk_extension, body_byte_by_byte]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """A server on the loopback interface that answers every request so; its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    stream, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(stream,), daemon=True).start()

        def one(stream: socket.socket) -> None:
            with stream, suppress(OSError):
                stream.recv(65536)
                answer(stream)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_WAITING_S", 0.3)
    monkeypatch.setattr(sessions, "_SLOWEST", 1 << 30)
    monkeypatch.setattr(fetch, "_PAUSE", 0.001)


@pytest.mark.parametrize("answer", ENDLESS)
def test_a_server_keeps_no_one_waiting(answer: Answer) -> None:
    begun = time.monotonic()
    with serving(answer) as address, pytest.raises(ProvisionError):
        get_small(f"http://{address}/file", limit=1000, patient=False)
    assert time.monotonic() - begun < _CASE_S / 2


def test_nor_does_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.monotonic()
    with serving(header_byte_by_byte) as address:
        monkeypatch.setenv("http_proxy", f"http://{address}")
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(ProvisionError):
            get_small("http://archive.invalid/file", limit=1000, patient=False)
    assert time.monotonic() - begun < _CASE_S / 2


def test_a_long_answer_in_many_chunks_is_read() -> None:
    """As archives are sent whose length is not known beforehand: each chunk has its own lines."""

    def answer(stream: socket.socket) -> None:
        stream.sendall(_CHUNKED + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")

    with serving(answer) as address, sessions.bounded_session() as session:
        assert session.get(f"http://{address}/").content == b"x" * 5000
