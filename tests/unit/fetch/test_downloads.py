"""Downloads from a server that fails in every way, and files that real keys have signed."""

from __future__ import annotations

import errno
import hashlib
import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kit.fileserver import Answering, guard, serving
from kit.openpgp import key_of
from provision import fetch
from provision.errors import (
    NotFoundError,
    ProvisionError,
    UnreachableError,
    UsageError,
    WrongContentError,
)
from provision.fetch import download, download_signed, download_summed, get_small, verify_detached
from provision.progress import Event, Transfer

CONTENT = b"a driver" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """Gives the prepared answers, one for each request; the last one again and again."""

    url: str = ""
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.answers.append((status, {"Content_Length": str(len(body)), **headers}, body))

    def send(self, to: Answering) -> None:
        self.requests.append(dict(to.headers))
        status, headers, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        to.send_response(status)
        for name, value in headers.items():
            if value:
                to.send_header(name.replace("_", "-"), value)
        to.end_headers()
        # A client that has had enough hangs up.
        with suppress(ConnectionError):
            to.wfile.write(body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(fetch, "_PAUSE", 0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Server()

    class Prepared(Answering):
        def do_GET(self) -> None:  # noqa: N802 - http.server
            made.send(self)

    with serving(Prepared) as url:
        made.url = f"{url}/file"
        yield made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_download_appears_whole_and_reports_its_progress(
    server: Server, tmp_path: Path, events: list[Event]
) -> None:
    server.answer(200, CONTENT)
    assert download(server.url, sha256=SHA256, destination=tmp_path / "new/f")
    assert (tmp_path / "new/f").read_bytes() == CONTENT
    assert names(tmp_path / "new") == ["f"]
    assert events[-1] == Transfer(server.url, len(CONTENT), len(CONTENT))


def test_a_file_of_this_machine_is_copied_if_it_is_the_right_one(tmp_path: Path) -> None:
    source = tmp_path / "a driver.tar"
    source.write_bytes(CONTENT)
    for address in (str(source), source.as_uri()):
        target = tmp_path / f"new/{len(address)}"
        assert download(address, sha256=SHA256, destination=target)
        assert target.read_bytes() == CONTENT
    before = names(tmp_path / "new")
    with pytest.raises(WrongContentError):
        download(str(source), sha256="0" * 64, destination=tmp_path / "new/f")
    with pytest.raises(NotFoundError):
        download(f"{source}.gone", sha256=SHA256, destination=tmp_path / "new/f")
    assert names(tmp_path / "new") == before


def test_a_login_comes_from_netrc(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = tmp_path / "netrc"
    logins.write_text("machine 127.0.0.1 login me password word\n")
    logins.chmod(0o600)
    monkeypatch.setenv("NETRC", str(logins))
    server.answer(200, CONTENT)
    download(server.url, sha256=SHA256, destination=tmp_path / "f")
    assert server.requests[0]["Authorization"] == f"Basic {b64encode(b'me:word').decode()}"


def test_a_file_that_is_right_already_is_not_asked_for(server: Server, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    assert not download(server.url, sha256=SHA256, destination=tmp_path / "f")
    assert server.requests == []


def test_wrong_content_is_named_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.answer(200, CONTENT)
    (tmp_path / "f").write_bytes(b"before")
    with pytest.raises(ProvisionError) as caught:
        download(server.url, sha256="0" * 64, destination=tmp_path / "f")
    assert server.url in caught.value.message
    assert caught.value.details == f"expected {'0' * 64}\ngot      {SHA256}"
    assert (tmp_path / "f").read_bytes() == b"before"
    assert names(tmp_path) == ["f"]


def test_trouble_is_tried_again(server: Server, tmp_path: Path) -> None:
    server.answer(503)
    server.answer(200, CONTENT[:100], Content_Length=str(len(CONTENT)))
    server.answer(200, CONTENT)
    download(server.url, sha256=SHA256, destination=tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "error", "tries"),
    [
        (502, UnreachableError, 4),
        (404, NotFoundError, 1),
        (410, NotFoundError, 1),
        (403, ProvisionError, 1),
    ],
)
def test_what_lasts_is_an_error_and_trouble_is_tried_four_times(
    server: Server, tmp_path: Path, status: int, error: type[ProvisionError], tries: int
) -> None:
    server.answer(status)
    with pytest.raises(error) as caught:
        download(server.url, sha256=SHA256, destination=tmp_path / "f")
    assert error is not UnreachableError or "502" in (caught.value.details or "")
    assert len(server.requests) == tries
    assert names(tmp_path) == []


@pytest.mark.usefixtures("server")
def test_a_closed_port_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        download("http://127.0.0.1:9/file", sha256=SHA256, destination=tmp_path / "f")
    # The reason, and not the library's objects around it.
    assert os.strerror(errno.ECONNREFUSED) in (caught.value.details or "")
    assert "Pool" not in (caught.value.details or "")


def test_a_small_file_is_read_up_to_its_limit(server: Server) -> None:
    server.answer(200, b"12345")
    assert get_small(server.url, limit=5) == b"12345"
    with pytest.raises(ProvisionError):
        get_small(server.url, limit=4)


def test_impatient_reading_asks_once(server: Server) -> None:
    server.answer(503)
    with pytest.raises(UnreachableError):
        get_small(server.url, limit=5, patient=False)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("begun", "ended", "is_refused"),
    [("https", "http", True), ("https", "https", False), ("http", "http", False)],
)
def test_https_does_not_lead_to_plain_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str, ended: str, *, is_refused: bool
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    guarded = guard(tmp_path, "")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(guarded.authority))
    places: list[str] = []

    class Leading(Answering):
        def do_GET(self) -> None:  # noqa: N802 - http.server
            if self.path == "/last":
                self.answer(200, b"sum")
            else:
                self.answer(302, Location=f"{places[0]}/last")

    tls = {"http": None, "https": guarded.tls()}
    with serving(Leading, tls[begun]) as first, serving(Leading, tls[ended]) as last:
        places.append(last)
        if not is_refused:
            assert get_small(f"{first}/file", limit=10) == b"sum"
            return
        with pytest.raises(ProvisionError):
            get_small(f"{first}/file", limit=10)
        # Nor does what only its own server vouches for.
        with pytest.raises(UsageError):
            download_summed(f"{first}/file", destination=tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    "url",
    [
        "gopher://host/f",
        "http://[::1/f",
        "http://host:port/f",
        "http://.host/f",
        f"http://{'a' * 70}.example/f",
        "http://",
        "file:///etc/passwd",
    ],
)
def test_an_address_that_is_none_is_an_error(url: str, tmp_path: Path) -> None:
    with pytest.raises(ProvisionError):
        download(url, sha256=SHA256, destination=tmp_path / "f")


@pytest.mark.parametrize(
    ("name", "value"),
    [("https_proxy", "http://[bad"), ("REQUESTS_CA_BUNDLE", "/nonexistent.pem")],
)
def test_an_environment_that_makes_no_sense_is_an_error(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_PAUSE", 0)
    monkeypatch.setenv(name, value)
    with pytest.raises(ProvisionError):
        download("https://127.0.0.1:9/f", sha256=SHA256, destination=tmp_path / "f")


@pytest.mark.parametrize("said", [True, False])
def test_a_download_is_cut_off_before_more_is_written(
    server: Server, tmp_path: Path, events: list[Event], *, said: bool
) -> None:
    server.answer(200, CONTENT, **({} if said else {"Content_Length": ""}))
    with pytest.raises(ProvisionError):
        download(server.url, sha256=SHA256, destination=tmp_path / "f", limit=len(CONTENT) - 1)
    assert events == []
    assert names(tmp_path) == []
    assert len(server.requests) == 1


@pytest.mark.parametrize("length", ["²", "-1", "1e3", "9" * 5000])
def test_a_length_that_is_none_does_not_count(server: Server, tmp_path: Path, length: str) -> None:
    server.answer(200, CONTENT, Content_Length=length)
    download(server.url, sha256=SHA256, destination=tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_file_that_only_its_own_server_vouches_for_takes_https(
    server: Server, tmp_path: Path
) -> None:
    server.answer(200, CONTENT)
    with pytest.raises(UsageError):
        download_summed(server.url, destination=tmp_path / "file")
    assert server.requests == []


ANOTHER = "another"


@pytest.mark.parametrize(
    ("signer", "altered", "accepted"),
    [("trusted", False, True), ("trusted", True, False), (ANOTHER, False, False)],
)
def test_a_file_is_kept_only_with_its_signature(
    server: Server, tmp_path: Path, signer: str, *, altered: bool, accepted: bool
) -> None:
    original = tmp_path / "original"
    original.write_bytes(CONTENT)
    server.answer(200, key_of(signer).sign_file(original).read_bytes())
    server.answer(200, CONTENT + b"!" * altered)
    file = tmp_path / "new/file"
    file.parent.mkdir()
    try:
        download_signed(server.url, keyring=key_of("trusted").keyring, destination=file)
    except WrongContentError:
        assert not accepted
        assert list(file.parent.iterdir()) == []
    else:
        assert accepted
        assert list(file.parent.iterdir()) == [file]


def test_without_a_program_that_checks_nothing_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(CONTENT)
    signature = key_of().sign_file(file)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NotFoundError, match="gpgv"):
        verify_detached(file, signature, keyring=key_of().keyring, name="f")
