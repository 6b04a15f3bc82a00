"""Signed documents: what is accepted from a server, by gpgv or by Sequoia."""

from pathlib import Path

import pytest

from provision.errors import ProvisionError
from provision.fetch import (
    SignatureError,
    Signed,
    get_signed,
    verify_signed,
)
from provision.run import Completed
from unit.fake_archive import fake_gpgv
from unit.fetch.prepared_server import CONTENT, Server, signed_text
from unit.fetch.prepared_server import server as server  # noqa: PLC0414 - a fixture


def test_only_what_is_signed_comes_back(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpgv(monkeypatch)
    server.answer(200, signed_text(tmp_path), ETag='"1"', Last_Modified="then")
    signed = get_signed(server.url, keyrings=[Path("/k")])
    assert signed.payload.startswith(b"Suite: s\n")
    assert b"PGP" not in signed.payload
    assert (signed.etag, signed.last_modified) == ('"1"', "then")


def test_what_is_known_is_not_sent_again(server: Server) -> None:
    server.answer(304)
    known = Signed(b"text", etag='"1"', last_modified="then")
    assert get_signed(server.url, keyrings=[], known=known) is known
    assert server.requests[0]["If-None-Match"] == '"1"'
    assert server.requests[0]["If-Modified-Since"] == "then"


def test_a_bad_signature_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpgv(monkeypatch, good=False)
    server.answer(200, signed_text(tmp_path))
    with pytest.raises(SignatureError, match="no valid signature by a key of /keys") as caught:
        get_signed(server.url, keyrings=[Path("/keys")])
    assert caught.value.details == "gpgv: said so"


@pytest.mark.parametrize("text", [b"", b"<html>Please log in</html>", b"before\n%s", b"%s%s"])
def test_a_document_with_anything_unsigned_is_refused(
    server: Server, tmp_path: Path, text: bytes
) -> None:
    server.answer(200, text.replace(b"%s", signed_text(tmp_path)))
    with pytest.raises(SignatureError, match="is not a signed document"):
        get_signed(server.url, keyrings=[])


def test_an_endless_document_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provision.fetch.signed._MAX_SIGNED", 10)
    server.answer(200, CONTENT)
    with pytest.raises(ProvisionError, match="larger than 10 bytes"):
        get_signed(server.url, keyrings=[])


def program(
    monkeypatch: pytest.MonkeyPatch, *names: str, status: int = 0, stdout: str = ""
) -> list[list[str]]:
    """Put a stand-in for the installed programs in place; returns how they were started."""
    started: list[list[str]] = []

    def run(argv: list[str | Path], **_options: object) -> Completed:
        words = [str(word) for word in argv]
        started.append(words)
        Path(words[words.index("--output") + 1]).write_bytes(b"payload")
        return Completed(tuple(words), status, stdout, "what it said")

    monkeypatch.setattr("provision.fetch.signed.run", run)
    monkeypatch.setattr("provision.fetch.signed.find_program", {n: n for n in names}.get)
    return started


def test_sequoia_checks_where_gnupg_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = program(monkeypatch, "sqv")
    assert verify_signed(signed_text(tmp_path), keyrings=[Path("/k")], name="f") == b"payload"
    assert started[0][:5] == ["sqv", "--keyring", "/k", "--cleartext", "--output"]


def test_sequoia_is_believed_by_its_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(monkeypatch, "sqv", status=1)
    with pytest.raises(SignatureError) as caught:
        verify_signed(signed_text(tmp_path), keyrings=[Path("/k")], name="f")
    assert caught.value.details == "what it said"


def test_one_good_signature_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = "[GNUPG:] GOODSIG 1 Old key\n[GNUPG:] NO_PUBKEY 2\n"
    started = program(monkeypatch, "gpgv", "sqv", status=2, stdout=status)
    assert verify_signed(signed_text(tmp_path), keyrings=[], name="f") == b"payload"
    assert started[0][0] == "gpgv"


@pytest.mark.parametrize(
    "status",
    [
        "[GNUPG:] GOODSIG 1 Old key\n[GNUPG:] BADSIG 2 New key\n",
        "[GNUPG:] EXPKEYSIG 1 Old key\n[GNUPG:] VALIDSIG 1\n",
        "[GNUPG:] NO_PUBKEY 2\n",
        "gpgv: GOODSIG\n",
        "",
    ],
)
def test_a_bad_or_missing_signature_is_not(
    status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(monkeypatch, "gpgv", stdout=status)
    with pytest.raises(SignatureError):
        verify_signed(signed_text(tmp_path), keyrings=[], name="f")
