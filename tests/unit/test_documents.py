"""Reading strict documents, and reporting all of their mistakes."""

import os
from pathlib import Path

import pytest

from provision import documents
from provision.documents import Frozen, load_json, load_toml
from provision.errors import ConfigError, NotFoundError


class Inner(Frozen):
    size: int


class Outer(Frozen):
    name: str
    parts: tuple[Inner, ...] = ()


def mistakes(error: ConfigError) -> list[str]:
    return [str(mistake) for mistake in error.mistakes]


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        (b"name = \n", "not valid TOML: Invalid value (at line 1, column 8)"),
        # A date is a text and not a crash.
        (b"name = 2026-11-20\nparts = 1979-05-27\n", "parts: Input should be a valid array"),
        (b"\xef\xbb\xbfname = 1\n", "begins with a byte order mark; save it as UTF-8 without BOM"),
        (rb'a = ["x", { b = "/x\u0000y" }]', "a.1.b: has a NUL character in it"),
        (b"ab\xff", "not UTF-8 text (byte 2)"),
        (b'name = "a long one" # ' + bytes(30), "larger than 50 bytes"),
        ("folder", "not a regular file"),
        # It is not waited for.
        ("pipe", "not a regular file"),
    ],
)
def test_what_is_no_document_is_a_mistake_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | str, mistake: str
) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 50)
    path = tmp_path / "f.toml"
    match content:
        case bytes():
            path.write_bytes(content)
        case "folder":
            path.mkdir()
        case _:
            os.mkfifo(path)
    with pytest.raises(ConfigError) as caught:
        load_toml(path, Outer)
    assert mistakes(caught.value) == [mistake]


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        load_json(tmp_path / "f.json", Outer)


@pytest.mark.parametrize(
    "text", [f"name = {'9' * 5000}", f"name = {'[' * 5000}", "name = 2026-99-99", "name = nan"]
)
def test_what_the_librarys_limits_refuse_is_a_mistake_of_the_file(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(ConfigError):
        load_toml(tmp_path / "f.toml", Outer)
