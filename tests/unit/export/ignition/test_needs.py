"""What a provision.toml must not hold, and must not name."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.config import Config
from provision.documents import load_toml
from provision.errors import ConfigError
from provision.export.ignition.served_folder import check_config
from unit.export.ignition.archives import write_toml

_SIGNING = '[signing]\nkey = "/etc/keys/mok.key"\ncertificate = "/etc/keys/mok.der"\n'


def _checked(folder: Path, text: str, *expected: str) -> ConfigError | None:
    file = write_toml(folder, text)
    try:
        check_config(load_toml(file, Config), file=file, expected=expected)
    except ConfigError as error:
        return error
    return None


def _paths(error: ConfigError | None) -> list[str]:
    return [mistake.path for mistake in error.mistakes] if error else []


def test_keys_that_no_configuration_writes_are_refused(tmp_path: Path) -> None:
    error = _checked(tmp_path, _SIGNING)
    assert _paths(error) == ["signing.key", "signing.certificate"]
    assert error is not None
    assert str(tmp_path / "provision.toml") in error.message
    assert "'/etc/keys/mok.key' would not be on the machine" in str(error.details)
    assert _paths(_checked(tmp_path, _SIGNING, "/etc/keys/mok.key")) == ["signing.certificate"]
    assert _checked(tmp_path, _SIGNING, "/etc/keys/mok.key", "/etc/keys/mok.der") is None


def test_a_key_in_a_token_is_no_file(tmp_path: Path) -> None:
    text = '[signing]\nkey = "pkcs11:object=mok"\ncertificate = "/usr/share/mok.der"\n'
    assert _checked(tmp_path, text) is None
    with_file = f'{text}pin_file = "/etc/pin"\n'
    assert _paths(_checked(tmp_path, with_file)) == ["signing.pin_file"]
    in_address = text.replace("object=mok", "object=mok?pin-source=file:/etc/pin")
    assert _paths(_checked(tmp_path, in_address)) == ["signing.pin_file"]


def test_folders_and_keyrings_are_files_too(tmp_path: Path) -> None:
    text = (
        'catalogue = ["/usr/share/more", "/srv/more"]\n'
        '[distros.debian.archive]\nkeyring = "/etc/apt/mine.gpg"\n'
    )
    assert _paths(_checked(tmp_path, text)) == ["distros.debian.archive.keyring", "catalogue.1"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('[distros.debian.archive]\nmirror = "https://me:hunter2@deb.example/debian"\n', "mirror"),
        ('[distros.debian.archive]\nsecurity_mirror = "http://m:s@deb.example"\n', "mirror"),
        ('[network]\nproxy = "http://me:hunter2@proxy.example:3128"\n', "network.proxy"),
        (
            '[[distros.fedora.repositories]]\nid = "x"\nurls = ["https://m.example/a?token=hunter2"]\n',
            "distros.fedora.repositories.0.urls.0",
        ),
        ('[engine]\nhost = "tcp://me:hunter2@engine.example:1"\n', "engine.host"),
    ],
)
def test_secrets_are_refused_and_not_repeated(tmp_path: Path, text: str, path: str) -> None:
    error = _checked(tmp_path, text)
    assert error is not None
    assert _paths(error)[0].endswith(path)
    said = f"{error.message}{error.details}{error.resolution}"
    assert "hunter2" not in said
