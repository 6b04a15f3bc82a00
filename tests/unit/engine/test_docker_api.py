"""Finding an engine, and saying so where there is none."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import requests
import urllib3
from docker import APIClient
from docker.errors import DockerException, StreamParseError

from kit.fileserver import Answering, serving
from provision.build.output import BuildStream, transfer
from provision.engine import docker_api as module
from provision.engine.docker_api import (
    ContainerRequest,
    Engine,
    EngineLostError,
    connect,
    split_reference,
)
from provision.errors import ExitCode, NotFoundError, ProvisionError


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("debian", ("debian", None)),
        ("debian:12", ("debian", "12")),
        ("host:5000/debian", ("host:5000/debian", None)),
        ("host:5000/debian:12", ("host:5000/debian", "12")),
        ("debian@sha256:ab", ("debian", "sha256:ab")),
        ("host:5000/a/debian:12@sha256:ab", ("host:5000/a/debian", "sha256:ab")),
    ],
)
def test_references_are_split_where_docker_splits_them(
    reference: str, parts: tuple[str, str | None]
) -> None:
    assert split_reference(reference) == parts


def test_no_engine_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    hosts = (f"unix://{tmp_path}/docker.sock", f"unix://{tmp_path}/podman.sock")
    monkeypatch.setattr(module, "DEFAULT_HOSTS", hosts)
    with pytest.raises(NotFoundError) as caught:
        connect()
    assert all(host in (caught.value.details or "") for host in hosts)
    assert caught.value.exit_code == ExitCode.NOT_FOUND


def test_a_named_host_is_the_only_one_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/environment.sock")
    with pytest.raises(NotFoundError) as caught:
        connect(f"unix://{tmp_path}/config.sock")
    assert "config.sock" in (caught.value.details or "")
    assert "environment.sock" not in (caught.value.details or "")
    with pytest.raises(NotFoundError) as caught:
        connect()
    assert "environment.sock" in (caught.value.details or "")


def test_a_socket_that_may_not_be_used_is_no_missing_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_self: object, _address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(ProvisionError) as caught:
        connect("unix:///run/docker.sock")
    assert caught.value.exit_code == ExitCode.FAILED


def test_an_engine_that_says_nothing_during_a_build_is_lost(
    plain_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SILENT_SECONDS", 0.1)
    address = f"unix://{plain_path}/engine.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{plain_path}/engine.sock")
        listening.listen()
        engine = Engine(APIClient(base_url=address, version="1.41"), address)
        with closing(engine), pytest.raises(EngineLostError):
            list(engine.build(io.BytesIO(), build_args={}))


def _build(engine: Engine) -> None:
    list(engine.build(io.BytesIO(), build_args={}))


def _read(engine: Engine) -> None:
    with engine.archive("sha256:1", "/opt", owner="a test"):
        pass


def _inspect(engine: Engine) -> None:
    with engine.container(ContainerRequest(image_id="sha256:1", owner="a test", network="none")):
        pass


@pytest.mark.parametrize("ask", [_build, _read, _inspect])
def test_what_has_no_network_is_not_told_the_proxy_of_dockers_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Engine], None]
) -> None:
    """Docker's client and its SDK give it to every container and build, with its password."""
    proxy = "http://me:hush@proxy.example:3128"
    proxies = {"default": {"httpProxy": proxy, "httpsProxy": proxy}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    sent: list[bytes] = []

    class Answer(Answering):
        def _record(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent.append(f"{self.path} {self.headers}".encode() + self.rfile.read(length))
            self.answer(200, b"[]" if self.command == "GET" else b'{"Id": "1"}')

        do_GET = do_POST = do_DELETE = _record  # noqa: N815 - as the library calls them

    with serving(Answer) as url:
        engine = Engine(APIClient(base_url=url, version="1.41"), url)
        with closing(engine), suppress(ProvisionError):
            ask(engine)
    assert any(
        request.startswith((b"/v1.41/build", b"/v1.41/containers/create")) for request in sent
    )
    assert not [request for request in sent if b"hush" in request]


@pytest.mark.parametrize(
    ("variables", "speaks_tls"),
    [({}, False), ({"DOCKER_TLS_VERIFY": ""}, False), ({"DOCKER_TLS_VERIFY": "1"}, True)],
)
def test_only_the_variable_that_verifies_turns_tls_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], *, speaks_tls: bool
) -> None:
    """As in Docker's client; the SDK takes the folder alone for TLS that verifies nothing."""
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    class Answer(Answering):
        def do_GET(self) -> None:  # noqa: N802 - http.server
            self.answer(200, b'{"ApiVersion": "1.41"}')

    refused: Any = pytest.raises(ProvisionError) if speaks_tls else nullcontext()
    with serving(Answer) as url, refused:
        connect(url.replace("http", "tcp")).close()


@pytest.mark.parametrize(
    "host", ["tcp://h:port", "tcp://h:99999", "unix://a\0b", "tcp://[::1", f"tcp://{'a' * 70}.x:1"]
)
def test_an_address_that_makes_no_sense_is_said(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with pytest.raises(NotFoundError) as caught:
        connect(host)
    assert host.replace("\0", "?") in (caught.value.details or "")


class _Client:
    """Stands for the SDK's client; each call gives the prepared answer, or raises it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def __getattr__(self, _name: str) -> Callable[..., object]:
        def call(*_words: object, **_options: object) -> object:
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer

        return call


def _engine(answer: object) -> Engine:
    return Engine(cast("APIClient", _Client(answer)), "unix:///fake.sock")


def _archive(engine: Engine) -> None:
    with engine.archive("i", "/opt", owner="me") as stream:
        assert list(stream)


_CALLS: list[Callable[[Engine], object]] = [
    lambda engine: engine.image("x"),
    lambda engine: engine.images_with_label("x"),
    lambda engine: list(engine.build(io.BytesIO(), build_args={})),
    lambda engine: list(engine.pull("x:1")),
    _archive,
]


@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize(
    "error",
    [
        DockerException("sdk"),
        StreamParseError("not json"),
        requests.exceptions.ReadTimeout("slow"),
        requests.exceptions.ChunkedEncodingError("cut"),
        urllib3.exceptions.ProtocolError("cut"),
        ConnectionResetError(104, "reset"),
    ],
)
def test_whatever_the_sdk_raises_is_an_error_of_ours(
    call: Callable[[Engine], object], error: Exception
) -> None:
    with pytest.raises(EngineLostError, match=r"unix:///fake\.sock"):
        call(_engine(error))


def test_messages_of_odd_shapes_break_nothing() -> None:
    shapes: list[object] = [None, 7, "text", [], {}, {"current": "x"}, {"current": 1}]
    for odd in shapes:
        assert len(transfer({"progressDetail": odd})) <= 1
        stream = BuildStream()
        for key in ("aux", "errorDetail", "progressDetail", "stream", "error"):
            stream.feed({key: odd, "status": odd, "error": "e"})
