"""Signed documents: what is accepted of what real keys have signed, checked by the real gpgv."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from kit.openpgp import Key, key_of, new_home
from kit.process import run_bytes
from provision.errors import NotFoundError, ProvisionError
from provision.fetch import (
    SignatureError,
    Signed,
    download_signed,
    get_signed,
    verify_signed,
)
from unit.fetch.prepared_server import CONTENT, Server
from unit.fetch.prepared_server import server as server  # noqa: PLC0414 - a fixture

TEXT = "Suite: s\n"
LONG_AGO = "--faked-system-time=20200101T000000!"
ANOTHER = "another"
BLOCK = re.compile(rb"-----BEGIN PGP SIGNATURE-----.*", re.DOTALL)


def signed(text: str = TEXT) -> bytes:
    return key_of().sign(text).encode()


@cache
def expired_key() -> Key:
    """A key whose time is over."""
    return Key.make(new_home(), "old", LONG_AGO, lasts="1d")


def with_signature_of(text: bytes, *others: bytes) -> bytes:
    """Put the signatures of other documents into one, in place of its own."""
    home, packets = new_home(), b""
    for other in others:
        packets += run_bytes(["gpg", "--homedir", home, "--dearmor"], stdin=BLOCK.findall(other)[0])
    armoured = run_bytes(["gpg", "--homedir", home, "--enarmor"], stdin=packets)
    block = armoured.replace(b"ARMORED FILE", b"SIGNATURE")
    return BLOCK.sub(lambda _: block, text)


def by_two() -> bytes:
    """A document that an old and a new key have signed, while keys change."""
    return with_signature_of(signed(), signed(), key_of(ANOTHER).sign(TEXT).encode())


def test_only_what_is_signed_comes_back(server: Server) -> None:
    server.answer(200, signed(), ETag='"1"', Last_Modified="then")
    read = get_signed(server.url, keyrings=[key_of().keyring])
    assert read == Signed(TEXT.encode(), etag='"1"', last_modified="then")


def test_what_is_known_is_not_sent_again(server: Server) -> None:
    server.answer(304)
    known = Signed(b"text", etag='"1"', last_modified="then")
    assert get_signed(server.url, keyrings=[], known=known) is known
    assert server.requests[0]["If-None-Match"] == '"1"'
    assert server.requests[0]["If-Modified-Since"] == "then"


def test_one_good_signature_is_enough() -> None:
    for key in (key_of(), key_of(ANOTHER)):
        assert verify_signed(by_two(), keyrings=[key.keyring], name="f") == TEXT.encode()


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(
            lambda: key_of(ANOTHER).sign(TEXT).encode(), id="by a key that is not trusted"
        ),
        pytest.param(lambda: signed().replace(b"Suite", b"suite"), id="altered"),
        pytest.param(
            lambda: with_signature_of(signed(), signed("other\n")), id="signature of something else"
        ),
        pytest.param(
            lambda: key_of(ANOTHER).sign("[GNUPG:] GOODSIG 1 x\n").encode(), id="status in text"
        ),
        pytest.param(
            lambda: expired_key().sign(TEXT, LONG_AGO).encode(), id="by a key whose time is over"
        ),
    ],
)
def test_no_other_signature_is(document: Callable[[], bytes], server: Server) -> None:
    server.answer(200, document())
    with pytest.raises(SignatureError) as caught:
        get_signed(server.url, keyrings=[key_of().keyring, expired_key().keyring])
    assert "gpgv" in (caught.value.details or "")


def test_a_signature_that_is_bad_outweighs_a_good_one() -> None:
    """As where a key was changed, and the document after it."""
    document = with_signature_of(signed(), signed(), signed("other\n"))
    with pytest.raises(SignatureError) as caught:
        verify_signed(document, keyrings=[key_of().keyring], name="f")
    assert {"Good signature", "BAD signature"} <= set(
        re.findall(r"(?:Good|BAD) signature", caught.value.details or "")
    )


@pytest.mark.parametrize("text", [b"", b"<html>Please log in</html>", b"before\n%s", b"%s%s"])
def test_a_document_with_anything_unsigned_is_refused(server: Server, text: bytes) -> None:
    server.answer(200, text.replace(b"%s", signed()))
    with pytest.raises(SignatureError, match="is not a signed document"):
        get_signed(server.url, keyrings=[key_of().keyring])


def test_an_endless_document_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provision.fetch.signed._MAX_SIGNED", 10)
    server.answer(200, CONTENT)
    with pytest.raises(ProvisionError, match="larger than 10 bytes"):
        get_signed(server.url, keyrings=[])


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
    try:
        download_signed(server.url, keyring=key_of("trusted").keyring, destination=file)
    except SignatureError:
        assert not accepted
        assert list(file.parent.iterdir()) == []
    else:
        assert accepted
        assert list(file.parent.iterdir()) == [file]


def test_without_a_program_that_checks_nothing_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    document = signed()
    monkeypatch.setattr("provision.run._search_path", lambda: "/nonexistent")
    with pytest.raises(NotFoundError, match="gpgv"):
        verify_signed(document, keyrings=[key_of().keyring], name="f")
