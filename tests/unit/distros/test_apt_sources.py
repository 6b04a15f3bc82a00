"""The apt configuration of a machine: its sources, and their keys."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.distros.debian.suites import (
    AptSource,
    binary_keyring,
    dearmor,
    parse_deb822,
    parse_list,
    read_sources,
    store_key,
)
from provision.errors import ProvisionError

DEB822 = """\
# The distribution itself.
Types: deb deb-src
# An older snapshot stood here.
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb-src
URIs: http://sources.example/debian
Suites: bookworm
Components: main
"""

ONE_LINE = """\
# deb http://comment.example/debian bookworm main
deb-src http://sources.example/debian bookworm main
deb [arch=amd64,arm64 signed-by=/k/a.gpg,/k/b.gpg] http://mirror.example/debian bookworm main # why
deb http://security.example/debian-security bookworm-security main contrib
deb http://flat.example/ ./
"""

WORD = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
URI = WORD.map(lambda word: f"http://{word}.example/debian")


def places(sources: list[AptSource]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(source.uri, source.suite, source.components) for source in sources]


def test_deb822_gives_one_source_a_suite_and_leaves_out_what_is_off() -> None:
    sources = list(parse_deb822(DEB822, origin="f"))
    assert places(sources) == [
        ("http://mirror.example/debian", "bookworm", ("main", "contrib")),
        ("http://mirror.example/debian", "bookworm-updates", ("main", "contrib")),
    ]
    assert sources[0].signed_by == ("/usr/share/keyrings/debian-archive-keyring.gpg",)


def test_one_line_sources_have_options_and_comments() -> None:
    sources = list(parse_list(ONE_LINE, origin="f"))
    assert places(sources) == [
        ("http://mirror.example/debian", "bookworm", ("main",)),
        ("http://security.example/debian-security", "bookworm-security", ("main", "contrib")),
        ("http://flat.example", "./", ()),
    ]
    assert sources[0].signed_by == ("/k/a.gpg", "/k/b.gpg")


def test_a_key_may_stand_in_the_file_itself() -> None:
    text = (
        "Types: deb\nURIs: http://m.example/d\nSuites: s\nComponents: main\nSigned-By:\n"
        " -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n AAAA\n -----END PGP PUBLIC KEY BLOCK-----\n"
    )
    (source,) = parse_deb822(text, origin="f")
    assert source.key is not None
    assert "AAAA" in source.key
    assert source.signed_by == ()


def test_a_fingerprint_names_no_key_file() -> None:
    (source,) = parse_list("deb [signed-by=ABCDEF0123456789] http://m.example s main", origin="f")
    assert source.signed_by == ()


def test_a_line_without_sense_is_said_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    text = "deb http://m.example\ndeb http://m.example s main\n"
    assert [source.suite for source in parse_list(text, origin="some.list")] == ["s"]
    assert "some.list:1" in caplog.text


def test_every_file_of_apt_is_read_and_lists_of_mirrors_are_followed(tmp_path: Path) -> None:
    parts = tmp_path / "etc/apt/sources.list.d"
    parts.mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text("deb http://a.example/d a main\n")
    (parts / "b.list").write_text("deb http://b.example/d b main\n")
    (parts / "c.sources").write_text(
        "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/c.list\nSuites: c\nComponents: main\n"
    )
    (parts / "d.list").write_text("deb mirror+file:/etc/apt/mirrors/none.list d main\n")
    (parts / "e.sources.save").write_text("not apt's business")
    mirrors = tmp_path / "etc/apt/mirrors/c.list"
    mirrors.parent.mkdir()
    mirrors.write_text(
        "# near\nfile:/media/c\nhttp://c.example/d/\tpriority:1\nhttp://far.example\n"
    )
    assert places(read_sources(tmp_path)) == [
        ("http://a.example/d", "a", ("main",)),
        ("http://b.example/d", "b", ("main",)),
        ("http://c.example/d", "c", ("main",)),
    ]


def test_a_host_without_apt_has_no_sources(tmp_path: Path) -> None:
    assert read_sources(tmp_path) == []


@given(URI, WORD, st.lists(WORD, min_size=1, max_size=4), st.sampled_from([None, "/k.gpg"]))
def test_both_formats_say_the_same(
    uri: str, suite: str, components: list[str], keyring: str | None
) -> None:
    line = (
        f"deb {f'[signed-by={keyring}] ' if keyring else ''}{uri} {suite} {' '.join(components)}\n"
    )
    stanza = f"Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: {' '.join(components)}\n" + (
        f"Signed-By: {keyring}\n" if keyring else ""
    )
    assert list(parse_list(line, origin="f")) == list(parse_deb822(stanza, origin="f"))


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
    with pytest.raises(ProvisionError):
        dearmor(text, name="f")


@pytest.mark.parametrize("body", ["AA!A", "AAA", "ÄÄÄÄ"])
def test_a_damaged_key_is_an_error(body: str) -> None:
    with pytest.raises(ProvisionError):
        dearmor(f"{BEGIN}\n\n{body}\n{END}\n", name="f")


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
