"""No value leaves its place in a Dockerfile."""

from __future__ import annotations

import json
import re
import shlex
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.build.dockerfile import label_value, one_line, shell_command, shell_word
from provision.errors import UsageError

# Everything but line ends and control characters, which no value may hold.
PRINTABLE = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\u2028\u2029")
)
CONTROL = [chr(code) for code in range(0x20)] + ["\x7f", "\x85", "\u2028", "\u2029"]


def read_label(text: str) -> str:
    """Undo a double-quoted value as Dockerfile's reader does."""
    assert text[0] == text[-1] == '"'
    inner = text[1:-1]
    # No quote ends the value early, no dollar is left to be a variable.
    assert re.fullmatch(r'(?:[^"$\\]|\\["$\\])*', inner, re.DOTALL)
    return re.sub(r'\\(["$\\])', r"\1", inner)


@given(PRINTABLE)
def test_shell_word_is_one_word(text: str) -> None:
    assert shlex.split(shell_word(text)) == [text]


@given(PRINTABLE)
def test_label_value_is_read_back(text: str) -> None:
    assert read_label(label_value(text)) == text


@given(st.lists(PRINTABLE.filter(lambda word: "{jobs}" not in word)))
def test_shell_command_keeps_its_words(words: list[str]) -> None:
    assert shlex.split(shell_command(words, {"{jobs}": "JOBS"})) == words


@pytest.mark.parametrize("character", CONTROL)
def test_control_characters_are_refused(character: str) -> None:
    assert unicodedata.category(character) in {"Cc", "Zl", "Zp"}
    for quote in (shell_word, label_value):
        with pytest.raises(UsageError):
            quote(f"a{character}b")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("-j{jobs}", '-j"${JOBS}"'),
        ("{jobs}", '"${JOBS}"'),
        ("a b{jobs}$c", "'a b'\"${JOBS}\"'$c'"),
        ("{jobs}{jobs}", '"${JOBS}""${JOBS}"'),
        ("{other}", "'{other}'"),
    ],
)
def test_variable_is_the_only_thing_the_shell_expands(word: str, expected: str) -> None:
    assert shell_command([word], {"{jobs}": "JOBS"}) == expected


def test_one_line_joins_lines() -> None:
    assert one_line("  a\n b\tc ") == "a b c"


def test_a_label_that_is_too_long_for_a_line_is_continued_as_it_is() -> None:
    packages = [{"name": f"package-{number}"} for number in range(1000)]
    text = json.dumps(packages, separators=(",", ":"))
    value = label_value(text)
    assert max(map(len, value.split("\n"))) < 1000
    assert value.replace("\\\n", "") == f'"{text.replace(chr(34), chr(92) + chr(34))}"'
    assert not any(line.lstrip().startswith("#") for line in value.split("\n"))
