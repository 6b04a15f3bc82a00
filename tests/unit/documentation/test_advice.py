"""What messages tell people to run: that the program takes it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

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


def _texts() -> Iterator[tuple[str, str]]:
    """Yield each text of the code that is no docstring, with where it is; values are X."""
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
                        str(part.value) if isinstance(part, ast.Constant) else "X"
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
