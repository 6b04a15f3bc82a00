"""Writes TOML, which Python's library only reads.

Source: https://toml.io/en/v1.0.0
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(document: Mapping[str, Any]) -> str:
    """Return a document as TOML; members that are None or empty tables' tables are left out.

    Raises:
        TypeError: A value has no form in TOML.
    """
    return "\n".join(_table(document, ())).strip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    values = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
    tables = {k: v for k, v in table.items() if isinstance(v, Mapping)}
    # An empty table is written if it has a meaning, such as a driver with all defaults.
    if path and (values or not tables):
        yield ""
        yield f"[{'.'.join(map(_key, path))}]"
    for name, value in values.items():
        yield f"{_key(name)} = {_value(value)}"
    for name, inner in tables.items():
        yield from _table(inner, (*path, name))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        members = (f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{ {', '.join(members)} }}"
    raise TypeError(f"{value!r} can't be written as TOML")


def _string(value: str) -> str:
    # TOML has the same escapes as JSON, and also requires one for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
