"""Key files."""

import base64
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.distros.debian.apt_sources import binary_keyring, dearmor, store_key
from provision.errors import ProvisionError

BEGIN, END = "-----BEGIN PGP PUBLIC KEY BLOCK-----", "-----END PGP PUBLIC KEY BLOCK-----"


def armor(key: bytes, *, indent: str = "", empty: str = "", headers: tuple[str, ...] = ()) -> str:
    data = base64.b64encode(key).decode()
    body = [data[at : at + 64] for at in range(0, len(data), 64)]
    lines = [BEGIN, *headers, empty, *body, "=njUN", END]
    return "".join(f"{indent}{line}\n" for line in lines)


@given(st.binary(min_size=1, max_size=300))
def test_armor_comes_off(key: bytes) -> None:
    assert dearmor(armor(key), name="f") == key
    assert dearmor(armor(key, headers=("Version: 1", "Comment: x")), name="f") == key


@given(st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=3))
def test_several_blocks_make_one_keyring(keys: list[bytes]) -> None:
    assert dearmor("\n".join(map(armor, keys)), name="f") == b"".join(keys)


def test_a_key_in_a_deb822_field_is_indented_with_dots_for_empty_lines() -> None:
    assert dearmor(armor(b"key", indent=" ", empty="."), name="f") == b"key"


@pytest.mark.parametrize("text", ["", "no key", f"{BEGIN}\n\n{END}\n"])
def test_a_text_without_a_key_is_an_error(text: str) -> None:
    with pytest.raises(ProvisionError, match="no OpenPGP key in 'f'"):
        dearmor(text, name="f")


@pytest.mark.parametrize("body", ["AA!A", "AAA", "ÄÄÄÄ"])
def test_a_damaged_key_is_an_error(body: str) -> None:
    with pytest.raises(ProvisionError, match="'f' is damaged"):
        dearmor(f"{BEGIN}\n\n{body}\n{END}\n", name="f")


@given(st.text())
def test_any_text_is_a_key_or_an_error_of_ours(text: str) -> None:
    with suppress(ProvisionError):
        dearmor(f"{BEGIN}\n{text}\n{END}\n", name="f")


def test_binary_keyrings_are_used_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "k.gpg").write_bytes(b"\x99\x01binary")
    assert binary_keyring(tmp_path / "k.gpg", tmp_path / "keys") == tmp_path / "k.gpg"
    assert not (tmp_path / "keys").exists()


def test_armored_keyrings_are_copied_in_binary_form(tmp_path: Path) -> None:
    (tmp_path / "k.asc").write_text(armor(b"binary"))
    made = binary_keyring(tmp_path / "k.asc", tmp_path / "keys")
    assert made.parent == tmp_path / "keys"
    assert made.read_bytes() == b"binary"
    assert store_key(armor(b"binary"), tmp_path / "keys", name="f") == made
