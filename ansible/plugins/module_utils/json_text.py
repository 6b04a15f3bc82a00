"""Changes single members of a JSON text and leaves every other byte of it as it was.

Files such as Docker's daemon.json are written by people: their order, indentation and comments
(``//``, ``#`` at the start of a line, and ``/* */``, which some tools accept) are theirs.

Grammar: https://www.rfc-editor.org/rfc/rfc8259, with those comments and trailing commas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SPACE = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_STEP = "    "


class JsonTextError(ValueError):
    """A text that is no JSON object, or not of the shape that is needed; says where."""


@dataclass(frozen=True)
class _Node:
    """A value: where its text is, and what it is."""

    start: int
    end: int
    value: Any
    # Of an object: where each name begins, and its value's node.
    members: Mapping[str, tuple[int, _Node]] = field(default_factory=dict)


def loads(text: str) -> dict[str, Any]:
    """Return the object that a text is; of an empty one, an empty object.

    Raises:
        JsonTextError: It is none.
    """
    value: dict[str, Any] = _root(text).value if text.strip() else {}
    return value


def set_member(text: str, path: Sequence[str], value: object) -> str:
    """Return a text in which the member at ``path`` has a value; objects on the way are made.

    Raises:
        JsonTextError: The text is no object, or a value on the way is none.
    """
    if not text.strip():
        text = "{}\n"
    node = _root(text)
    for depth, name in enumerate(path):
        if name not in node.members:
            return _inserted(text, node, name, _nested(path[depth + 1 :], value))
        node = node.members[name][1]
        if depth < len(path) - 1 and not isinstance(node.value, dict):
            raise JsonTextError(f"'{'.'.join(path[: depth + 1])}' is not an object")
    if node.value == value:
        return text
    return text[: node.start] + _dumped(value, _indent_at(text, node.start)) + text[node.end :]


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return a text without the member at ``path``; a missing one is no mistake.

    Raises:
        JsonTextError: The text is no object.
    """
    if not text.strip():
        return text
    node = _root(text)
    for name in path[:-1]:
        if name not in node.members:
            return text
        node = node.members[name][1]
    name = path[-1]
    if name not in node.members:
        return text
    start, gone = node.members[name]
    names = list(node.members)
    if name != names[-1]:
        after = text.index(",", _skip(text, gone.end)) + 1
        # Up to the next name, so that its indentation stands where ours did.
        return text[:start] + text[_skip_blanks(text, after) :]
    if len(names) == 1:
        inside = text[node.start + 1 : start].rstrip() + text[gone.end : node.end - 1]
        kept = inside if inside.strip(" \t\r\n,") else ""
        return text[: node.start + 1] + kept + text[node.end - 1 :]
    before = node.members[names[-2]][1].end
    # The comma is ours too; a comment between the two stays.
    between = text[before:start].replace(",", "", 1).rstrip()
    return text[:before] + between + text[gone.end :]


def _nested(path: Sequence[str], value: object) -> object:
    for name in reversed(path):
        value = {name: value}
    return value


def _inserted(text: str, node: _Node, name: str, value: object) -> str:
    """Return the text with a new last member in an object."""
    if not isinstance(node.value, dict):
        raise JsonTextError(f"what should hold '{name}' is not an object")
    outer = _indent_at(text, node.start)
    if not node.members:
        inner = outer + _STEP
        member = f"{json.dumps(name)}: {_dumped(value, inner)}"
        inside = text[node.start + 1 : node.end - 1].rstrip()
        return f"{text[: node.start + 1]}{inside}\n{inner}{member}\n{outer}{text[node.end - 1 :]}"
    first_start = next(iter(node.members.values()))[0]
    last = list(node.members.values())[-1][1]
    is_on_lines = "\n" in text[node.start : first_start]
    inner = _indent_at(text, first_start)
    text_of = _dumped(value, inner if is_on_lines else None, inner[len(outer) :] or _STEP)
    member = f"{json.dumps(name)}: {text_of}"
    lead = f"\n{inner}" if is_on_lines else " "
    has_comma = text[_skip(text, last.end) : node.end].startswith(",")
    if has_comma:
        at = text.index(",", _skip(text, last.end)) + 1
        return f"{text[:at]}{lead}{member}{text[at:]}"
    # What follows the last value on its line, such as a comment, stays beside it.
    at = _end_of_line(text, last.end, node.end - 1) if is_on_lines else last.end
    return f"{text[: last.end]},{text[last.end : at]}{lead}{member}{text[at:]}"


def _end_of_line(text: str, start: int, limit: int) -> int:
    found = text.find("\n", start, limit)
    return start if found < 0 else found


def _dumped(value: object, indent: str | None, step: str = _STEP) -> str:
    """Return a value as text; over several lines, if it stands in a line indented so."""
    if indent is None:
        return json.dumps(value)
    return json.dumps(value, indent=step).replace("\n", f"\n{indent}")


def _indent_at(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 :]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _root(text: str) -> _Node:
    node = _value(text, _skip(text, 0))
    if not isinstance(node.value, dict):
        raise _mistake(text, node.start, "an object")
    end = _skip(text, node.end)
    if end != len(text):
        raise _mistake(text, end, "the end of the file")
    return node


def _value(text: str, at: int) -> _Node:
    opening = text[at : at + 1]
    if opening == "{":
        return _object(text, at)
    if opening == "[":
        return _array(text, at)
    found = _STRING.match(text, at) or _SCALAR.match(text, at)
    if found is None:
        raise _mistake(text, at, "a value")
    return _Node(at, found.end(), json.loads(found.group()))


def _object(text: str, start: int) -> _Node:
    members: dict[str, tuple[int, _Node]] = {}
    at = _skip(text, start + 1)
    while text[at : at + 1] != "}":
        name = _STRING.match(text, at)
        if name is None:
            raise _mistake(text, at, "a name in quotes, or '}'")
        colon = _skip(text, name.end())
        if text[colon : colon + 1] != ":":
            raise _mistake(text, colon, "':'")
        node = _value(text, _skip(text, colon + 1))
        members[json.loads(name.group())] = (at, node)
        at = _after_item(text, node.end, "}")
    value = {name: node.value for name, (_, node) in members.items()}
    return _Node(start, at + 1, value, members)


def _array(text: str, start: int) -> _Node:
    values: list[Any] = []
    at = _skip(text, start + 1)
    while text[at : at + 1] != "]":
        node = _value(text, at)
        values.append(node.value)
        at = _after_item(text, node.end, "]")
    return _Node(start, at + 1, values)


def _after_item(text: str, at: int, closing: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1)
    if text[at : at + 1] != closing:
        raise _mistake(text, at, f"',' or '{closing}'")
    return at


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _skip_blanks(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip())


def _mistake(text: str, at: int, expected: str) -> JsonTextError:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return JsonTextError(f"line {line}, column {column}: {expected} expected")
