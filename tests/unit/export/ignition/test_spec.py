"""Ignition's format: what is in the document, and what is fetched."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from provision.export.ignition.machine import (
    Contents,
    Directory,
    File,
    IgnitionConfig,
    Storage,
    fetched,
    inline,
)

_SHA512 = "ab" * 64


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_comes_out_of_the_document_as_it_went_in(text: str) -> None:
    source = inline(text).source
    assert source.startswith("data:,")
    assert source.isascii()
    assert not set(source) & set(' "\n\t\\#?&')
    assert unquote(source.removeprefix("data:,")) == text


def test_what_is_fetched_is_verified_and_nothing_else() -> None:
    assert fetched("https://a.example/x", _SHA512).verification is not None
    with pytest.raises(ValidationError, match="is verified"):
        Contents(source="https://a.example/x")
    with pytest.raises(ValidationError, match="sha512"):
        fetched("https://a.example/x", "ab")
    with pytest.raises(ValidationError, match="pattern"):
        fetched("file:///etc/shadow", _SHA512)


def test_a_path_is_absolute_and_there_once() -> None:
    folder = Directory(path="/opt/provision", mode=0o755)
    with pytest.raises(ValidationError, match="only once"):
        Storage(directories=(folder, folder))
    for path in ("opt/provision", "/", "/opt/", "/a b", "/a//b"):
        with pytest.raises(ValidationError, match="path"):
            Directory(path=path, mode=0o755)


def test_owners_and_modes_are_said_and_nothing_is_null() -> None:
    file = File(path="/etc/x", mode=0o644, contents=inline("x"))
    document = json.loads(IgnitionConfig(storage=Storage(files=(file,))).render())
    assert document == {
        "ignition": {"version": "3.3.0"},
        "storage": {
            "directories": [],
            "files": [
                {
                    "path": "/etc/x",
                    "user": {"id": 0},
                    "group": {"id": 0},
                    "mode": 420,
                    "contents": {"source": "data:,x"},
                    "overwrite": True,
                }
            ],
            "links": [],
        },
        "systemd": {"units": []},
    }
