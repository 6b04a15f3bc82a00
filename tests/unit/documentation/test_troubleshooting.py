"""Every message that the page on troubleshooting quotes is one of a program's."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest

from kit.cache import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

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


def _texts_of_python(path: Path) -> list[str]:
    """The strings of a module; Python joins those that stand in several lines."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else _VALUE for p in node.values)
            found.append("".join(str(part) for part in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def _texts_of_rust(path: Path) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", path.read_text())
    strings: list[str] = re.findall(r'"((?:[^"\\]|\\.)*)"', joined)
    return [re.sub(r"\{[^{}]*\}", _VALUE, text).replace('\\"', '"') for text in strings]


@cache
def _source() -> list[str]:
    python = (REPOSITORY / "src/provision").rglob("*.py")
    rust = (REPOSITORY / "hooks/src").rglob("*.rs")
    texts = [text for path in python for text in _texts_of_python(path)]
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
