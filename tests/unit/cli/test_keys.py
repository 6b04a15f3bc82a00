"""``provision registry key``: what makes a pair of keys, and where its password comes from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.registry.signatures import load_keys
from unit.cli.outcome import Outcome

Call = Callable[..., Outcome]


def make_keys(call: Call, tmp_path: Path, *words: object) -> dict[str, Any]:
    (tmp_path / "password").write_text("a password\n")
    given = words or ("--password-file", tmp_path / "password")
    found = call("registry", "key", "--output", tmp_path / "new", *given, "--json")
    assert found.code == 0, found.out
    return found.document


def test_a_key_is_made_once(call: Call, tmp_path: Path) -> None:
    made = make_keys(call, tmp_path)
    assert made["encrypted"] is True
    assert load_keys(Path(made["public"]))
    again = call("registry", "key", "--output", tmp_path / "new", "--no-password", "--json")
    assert again.code == 1
    assert "is there already" in again.document["error"]["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "No terminal to ask"),
        (("--no-password", "--password-fd", "9"), "can't be given together"),
        (("--password-fd", "987"), "no password at the descriptor 987"),
    ],
)
def test_a_password_has_to_come_from_somewhere(
    call: Call, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    refused = call("registry", "key", "--output", tmp_path / "new", *words, "--json")
    assert refused.code == 2
    assert said in refused.document["error"]["message"]
    assert list(tmp_path.glob("new*")) == []


def test_a_password_comes_by_a_descriptor(call: Call, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"a password\n")
    os.close(writer)
    made = make_keys(call, tmp_path, "--password-fd", reader)
    os.close(reader)
    assert b"ENCRYPTED" in Path(made["private"]).read_bytes()
