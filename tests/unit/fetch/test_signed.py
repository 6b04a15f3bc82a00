"""Signed files: what is accepted of what real keys have signed, checked by the real gpgv."""

from pathlib import Path

import pytest

from kit.openpgp import key_of
from provision.errors import NotFoundError, WrongContentError
from provision.fetch import download_signed, verify_detached
from unit.fetch.prepared_server import CONTENT, Server
from unit.fetch.prepared_server import server as server  # noqa: PLC0414 - a fixture

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
