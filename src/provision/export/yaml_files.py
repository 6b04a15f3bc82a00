"""Writes exported documents as YAML, into new folders.

Only JSON's types are written, which every YAML reader understands in the same way
(https://yaml.org/spec/1.2.2/): blocks for people to read, and text in JSON's quotes wherever a
reader could take it for another type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from provision.errors import UsageError
from provision.files import write_atomic

Value: TypeAlias = "str | int | bool | Sequence[Value] | Mapping[str, Value] | None"

# Text that no version of YAML reads as a number, date, boolean or null.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
# Characters that YAML escapes and JSON does not: section 5.1.
_UNPRINTED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"})


def to_yaml(*documents: Mapping[str, Value]) -> str:
    """Return documents as one text of YAML."""
    return "---\n".join("\n".join(_mapping(one, "")) + "\n" for one in documents)


def _mapping(value: Mapping[str, Value], indent: str) -> Iterator[str]:
    for key, item in value.items():
        yield from _item(f"{indent}{_scalar(key)}:", item, f"{indent}  ")


def _item(head: str, value: Value, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        yield head
        yield from _mapping(value, indent)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        yield head
        for one in value:
            yield from _entry(one, indent)
    else:
        yield f"{head} {_scalar(value)}"


def _entry(value: Value, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        first, *others = _mapping(value, f"{indent}  ")
        yield f"{indent}- {first.lstrip()}"
        yield from others
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        yield f"{indent}-"
        for one in value:
            yield from _entry(one, f"{indent}  ")
    else:
        yield f"{indent}- {_scalar(value)}"


def _scalar(value: Value) -> str:
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    text = json.dumps(value, ensure_ascii=False)
    return str(value) if is_plain else _UNPRINTED.sub(lambda one: f"\\u{ord(one[0]):04x}", text)


def check_output(folder: Path) -> None:
    """Refuse a folder that is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"'{folder}' is not empty, so nothing is written into it.",
            resolution=f"Name a new folder, or empty this one: rm -r '{folder}'",
        )


def write_files(folder: Path, files: Mapping[str, str | bytes], *, secret: str = "") -> None:
    """Write files into a folder, which is made if need be.

    Args:
        secret: The name of a file that only its owner may read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomic(folder / name, content, mode=0o600 if name == secret else 0o644)
