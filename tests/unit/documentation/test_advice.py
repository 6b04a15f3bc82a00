"""What messages tell people to run, and the messages that the page on troubleshooting quotes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kit.cache import REPOSITORY
from provision.cli import COMMANDS
from unit.documentation.commands import refusal

_SOURCES = REPOSITORY / "src/provision"
# In quotes a command is named. What is to be run has none, and reaches to the end of its part of
# the sentence.
_COMMAND = re.compile(
    rf"(?<![\w/])provision (?=(?:{'|'.join(COMMANDS)})\b)(?:(?<='provision )([^']*)'|([^;,)'\n]*))"
)
_END = re.compile(r"[.:]( |$)| \(| (?:or|and)(?: |$)|  ")


def _texts(value: str = "X") -> Iterator[tuple[str, str]]:
    """Yield each text of the code that is no docstring, with where it is; `value` is any value."""
    for path in sorted(_SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        parts = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            where = f"{path.relative_to(_SOURCES)}:{getattr(node, 'lineno', 0)}"
            if id(node) in parts | said:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield where, node.value
            elif isinstance(node, ast.JoinedStr):
                yield (
                    where,
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else value
                        for part in node.values
                    ),
                )


def _commands(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the commands of a text, and whether each is to be run."""
    for quoted, plain in _COMMAND.findall(text):
        yield quoted or _END.split(plain)[0], not quoted


def test_every_command_that_a_message_names_is_one_that_the_program_takes() -> None:
    wrong = []
    for where, text in _texts():
        for command, is_whole in _commands(text):
            try:
                words = shlex.split(command)
            except ValueError as error:
                wrong.append(f"{where}: {command}: {error}")
                continue
            # Nobody can paste an ellipsis; a word in capitals says what belongs there.
            why = "it has an ellipsis" if "…" in command else refusal(words, is_whole=is_whole)
            if why:
                wrong.append(f"{where}: provision {command}: {why}")
    assert wrong == []


_PAGE = REPOSITORY / "docs/how-to/troubleshooting.md"
# What another vendor's program says: it has its place on the page, and not in our source.
_OF_OTHERS = ("apt says", "nvidia-smi says")
_MESSAGES = [
    title
    for title in re.findall(r"(?m)^### (.+)$", _PAGE.read_text())
    if not title.startswith(_OF_OTHERS)
]
_VALUE = "…"
_SHORTEST = 8


def _texts_of_rust(path: Path) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", path.read_text())
    strings: list[str] = re.findall(r'"((?:[^"\\]|\\.)*)"', joined)
    return [re.sub(r"\{[^{}]*\}", _VALUE, text).replace('\\"', '"') for text in strings]


@cache
def _source() -> list[str]:
    rust = (REPOSITORY / "hooks/src").rglob("*.rs")
    texts = [text for _, text in _texts(_VALUE)]
    return texts + [text for path in rust for text in _texts_of_rust(path)]


def _pieces(message: str) -> list[str]:
    """What of a message is the program's own words; parts of one word or two say nothing."""
    pieces = [piece.strip(" '") for piece in message.split(_VALUE)]
    return [piece for piece in pieces if len(piece) >= _SHORTEST]


@pytest.mark.parametrize("message", _MESSAGES)
def test_a_message_on_the_page_is_one_of_the_programs(message: str) -> None:
    pieces = _pieces(message)
    assert pieces, "too short to be found"
    missing = [piece for piece in pieces if not any(piece in text for text in _source())]
    assert not missing
