"""Reads what apt's own configuration says: apt.conf(5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from provision.files import glob_in_root, in_root

# In the order in which apt reads them; of a folder only these names.
_FILES = ("apt.conf.d/*", "apt.conf")
_NAME = re.compile(r"[\w-]+|[\w.-]+\.conf")
_TOKEN = re.compile(
    r"//[^\n]*|\#[^\n]*|/\*(?s:.*?)\*/"
    r'|"(?P<value>[^"]*)"|(?P<sign>[{};])|(?P<word>[^\s"{};]+)'
)
_TRUE = frozenset({"yes", "true", "with", "on", "enable"})


def is_true(value: str) -> bool:
    """Return whether apt reads a value as true, where false is what it is without one."""
    return value.lower() in _TRUE or (value.isdigit() and int(value) != 0)


def apt_settings(root: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield the file and the value of each setting of a name, in lower case; the last one counts.

    ``A::B "x";`` and ``A { B "x"; };`` are the same.
    """
    for pattern in _FILES:
        for path in glob_in_root(root, f"etc/apt/{pattern}"):
            if _NAME.fullmatch(path.name) and in_root(root, path).is_file():
                for key, value in _settings(in_root(root, path).read_text(errors="replace")):
                    if key.lower() == name:
                        yield str(path), value


def _settings(text: str) -> Iterator[tuple[str, str]]:
    outer: list[str] = []
    words: list[str] = []
    for token in _TOKEN.finditer(text):
        match token["sign"]:
            case "{":
                outer.append(words[0] if words else "")
                words = []
            case "}":
                outer = outer[:-1]
                words = []
            case ";":
                if len(words) > 1:
                    yield "::".join([*outer, words[0]]), words[1]
                words = []
            case _:
                word = token["word"] if token["value"] is None else token["value"]
                words += [] if word is None else [word]
