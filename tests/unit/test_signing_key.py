"""How OpenSSL gets a key and its secret: never among its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.artifact import write
from provision.config import SigningConfig
from provision.errors import NotFoundError, ProvisionError
from provision.registry.signatures import PIN_VARIABLE, SigningKey, open_key

URI = "pkcs11:token=t;object=o"
HUSH = "hunter2"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PIN_VARIABLE, "PKCS11_MODULE_PATH", "PKCS11_PROVIDER_MODULE", "SOFTHSM2_CONF"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a key, and with a file that has its passphrase."""
    keys = tmp_path / "etc/keys"
    keys.mkdir(parents=True)
    (keys / "key").write_text("key")
    (keys / "pin").write_text(f"{HUSH}\r\nmore\n")
    return tmp_path


def _config(key: str = "/etc/keys/key", pin_file: str | None = None) -> SigningConfig:
    return SigningConfig(key=key, certificate="/etc/keys/certificate", pin_file=pin_file)


def _open(root: Path, config: SigningConfig) -> SigningKey:
    key = open_key(root, config)
    assert key is not None
    return key


def _openssl(folder: Path, monkeypatch: pytest.MonkeyPatch, *has: str) -> Path:
    """An OpenSSL that reaches tokens by none, one or both of its ways; what environment it got."""
    asked = folder / "asked"
    text = (
        f"#!/bin/sh\nenv >'{asked}'\ncase ' {' '.join(has)} ' in *\" $1 \"*) ;; *) exit 1 ;; esac\n"
    )
    write(folder / "programs/openssl", text.encode(), 0o755)
    monkeypatch.setenv("PATH", f"{folder}/programs:/usr/bin:/bin")
    return asked


def test_without_a_key_nothing_is_signed(root: Path) -> None:
    assert open_key(root, SigningConfig()) is None


def test_a_key_in_a_file_needs_no_secret(root: Path) -> None:
    key = _open(root, _config())
    assert key == SigningKey(("-inkey", f"{root}/etc/keys/key"), None, {})


@pytest.mark.parametrize("by_file", [True, False])
def test_a_secret_goes_through_standard_input(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, by_file: bool
) -> None:
    if not by_file:
        monkeypatch.setenv(PIN_VARIABLE, HUSH)
    key = _open(root, _config(pin_file="/etc/keys/pin" if by_file else None))
    assert key.secret == f"{HUSH}\n".encode()
    assert key.words[-2:] == ("-passin", "stdin")
    assert HUSH not in f"{key.words}{key.environment}{key!r}"


@pytest.mark.parametrize(
    ("has", "words"),
    [
        (("list", "engine"), ("-provider", "pkcs11", "-provider", "default", "-inkey", URI)),
        (("list",), ("-provider", "pkcs11", "-provider", "default", "-inkey", URI)),
        (("engine",), ("-engine", "pkcs11", "-keyform", "engine", "-inkey", URI)),
    ],
)
def test_a_token_is_reached_by_what_openssl_has(
    root: Path, monkeypatch: pytest.MonkeyPatch, has: tuple[str, ...], words: tuple[str, ...]
) -> None:
    _openssl(root, monkeypatch, *has)
    assert _open(root, _config(URI)).words == words
    with_pin = _open(root, _config(URI, pin_file="/etc/keys/pin"))
    assert with_pin.words == (*words, "-passin", "stdin")
    assert with_pin.secret == f"{HUSH}\n".encode()


def test_an_openssl_that_reaches_no_tokens_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _openssl(root, monkeypatch)
    with pytest.raises(NotFoundError):
        open_key(root, _config(URI))


def test_what_leads_to_a_token_is_handed_on_and_the_pin_is_not(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PIN_VARIABLE, HUSH)
    monkeypatch.setenv("PKCS11_MODULE_PATH", "/m.so")
    monkeypatch.setenv("SOFTHSM2_CONF", "/s.conf")
    asked = _openssl(root, monkeypatch, "list")
    key = _open(root, _config(URI))
    # One variable is enough for both of OpenSSL's ways.
    expected = {
        "PKCS11_MODULE_PATH": "/m.so",
        "PKCS11_PROVIDER_MODULE": "/m.so",
        "SOFTHSM2_CONF": "/s.conf",
    }
    assert key.environment == expected
    given = asked.read_text().splitlines()
    assert {f"{name}={value}" for name, value in expected.items()} <= set(given)
    assert HUSH not in asked.read_text()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, NotFoundError),
        (b"", ProvisionError),
        (b"\nhunter2\n", ProvisionError),
        (b"hunter2" * 200, ProvisionError),
    ],
)
def test_a_file_without_a_secret_is_named_and_not_quoted(
    root: Path, content: bytes | None, error: type[ProvisionError]
) -> None:
    path = root / "etc/keys/pin"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error) as caught:
        open_key(root, _config(pin_file="/etc/keys/pin"))
    assert str(path) in caught.value.message
    assert HUSH not in f"{caught.value}{caught.value.details}{caught.value.resolution}"


def test_a_secret_may_be_any_bytes(root: Path) -> None:
    (root / "etc/keys/pin").write_bytes(b"\xff\xfe")
    assert _open(root, _config(pin_file="/etc/keys/pin")).secret == b"\xff\xfe\n"


def test_a_key_that_is_missing_is_named(root: Path) -> None:
    with pytest.raises(NotFoundError):
        open_key(root, _config("/etc/none"))


def test_key_and_secret_are_the_other_hosts(tmp_path: Path) -> None:
    root, canary = tmp_path / "root", tmp_path / "canary"
    inside = root / str(canary).lstrip("/")
    inside.mkdir(parents=True)
    canary.mkdir()
    (root / "etc").symlink_to(canary)
    for folder, pin in ((canary, "mine"), (inside, "theirs")):
        (folder / "mok.key").write_text("")
        (folder / "mok.pin").write_text(f"{pin}\n")
    config = SigningConfig(key="/etc/mok.key", certificate="/c", pin_file="/etc/mok.pin")
    key = open_key(root, config)
    assert key is not None
    assert key.words[1] == str(inside / "mok.key")
    assert key.secret == b"theirs\n"
