"""Reading strict documents, and reporting all of their mistakes."""

import os
from pathlib import Path

import pytest

from provision import documents
from provision.documents import Frozen, load_json, load_toml
from provision.errors import ConfigError, ExitCode, NotFoundError


class Inner(Frozen):
    size: int


class Outer(Frozen):
    name: str
    parts: tuple[Inner, ...] = ()


def mistakes(error: ConfigError) -> list[str]:
    return [str(mistake) for mistake in error.mistakes]


def test_toml_and_json_give_the_same(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('name = "x"\n[[parts]]\nsize = 1\n')
    (tmp_path / "f.json").write_text('{"name": "x", "parts": [{"size": 1}]}')
    expected = Outer(name="x", parts=(Inner(size=1),))
    assert load_toml(tmp_path / "f.toml", Outer) == expected
    assert load_json(tmp_path / "f.json", Outer) == expected


def test_all_mistakes_are_reported_with_their_paths(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text('nme = "x"\n[[parts]]\nsize = "big"\n[[parts]]\nweight = 1\n')
    with pytest.raises(ConfigError) as caught:
        load_toml(path, Outer)
    assert caught.value.message == f"{path}: 5 mistakes"
    assert caught.value.exit_code is ExitCode.USAGE
    assert sorted(mistakes(caught.value)) == [
        "name: missing",
        "nme: unknown key; did you mean 'name'?",
        "parts.0.size: must be a whole number",
        "parts.1.size: missing",
        "parts.1.weight: unknown key; known here: size",
    ]


def test_one_mistake_is_one(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text("")
    with pytest.raises(ConfigError, match=r"f\.toml: 1 mistake$"):
        load_toml(tmp_path / "f.toml", Outer)


def test_broken_toml_says_where(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text("name = \n")
    with pytest.raises(ConfigError) as caught:
        load_toml(tmp_path / "f.toml", Outer)
    assert "not valid TOML" in mistakes(caught.value)[0]
    assert "line 1" in mistakes(caught.value)[0]


def test_a_date_is_a_text_and_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text("name = 2026-11-20\nparts = 1979-05-27T07:32:00Z\n")
    with pytest.raises(ConfigError, match="1 mistake"):
        load_toml(tmp_path / "f.toml", Outer)


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="There is no file"):
        load_json(tmp_path / "f.json", Outer)


def test_a_folder_in_its_place_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "f.toml").mkdir()
    with pytest.raises(ConfigError) as caught:
        load_toml(tmp_path / "f.toml", Outer)
    assert mistakes(caught.value) == ["a folder, where a file should be"]


def test_a_pipe_in_its_place_is_a_mistake_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.toml")
    with pytest.raises(ConfigError) as caught:
        load_toml(tmp_path / "a.toml", Outer)
    assert mistakes(caught.value) == ["not a regular file"]


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfname = 1\n")
    with pytest.raises(ConfigError) as caught:
        load_toml(tmp_path / "a.toml", Outer)
    (mistake,) = mistakes(caught.value)
    assert "byte order mark; save it as UTF-8 without BOM" in mistake


def test_what_no_path_can_hold_is_a_mistake_of_its_key(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(r'a = ["x", { b = "/x\u0000y" }]')
    with pytest.raises(ConfigError) as caught:
        load_toml(tmp_path / "f.toml", Outer)
    assert mistakes(caught.value) == ["a.1.b: has a NUL character in it"]


def test_what_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_bytes(b"ab\xff")
    with pytest.raises(ConfigError) as caught:
        load_json(tmp_path / "f.json", Outer)
    assert mistakes(caught.value) == ["not UTF-8 text (byte 2)"]


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 10)
    (tmp_path / "f.json").write_text('{"name": "a long one"}')
    with pytest.raises(ConfigError) as caught:
        load_json(tmp_path / "f.json", Outer)
    assert mistakes(caught.value) == ["larger than 10 bytes"]


@pytest.mark.parametrize(
    "text", [f"name = {'9' * 5000}", f"name = {'[' * 5000}", "name = 2026-99-99", "name = nan"]
)
def test_what_the_librarys_limits_refuse_is_a_mistake_of_the_file(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"f\.toml: 1 mistake"):
        load_toml(tmp_path / "f.toml", Outer)
