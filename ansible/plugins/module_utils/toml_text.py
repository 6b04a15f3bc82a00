"""Writes TOML, and puts marked blocks of ours at the end of TOML files that people wrote.

Python reads TOML and doesn't write it; comments of others would be lost in any case. A block of
whole tables at the end of a file needs nobody's line to change.

Source: https://toml.io/en/v1.0.0
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BEGIN = "# BEGIN oci-decorator (managed by Ansible)"
_END = "# END oci-decorator"
_BLOCK = re.compile(rf"\n?{re.escape(_BEGIN)}\n.*?{re.escape(_END)}\n?", re.DOTALL)


def dumps(document: Mapping[str, Any]) -> str:
    """Return a document as TOML; members that are None or empty tables' tables are left out.

    Raises:
        TypeError: A value has no form in TOML.
    """
    return "\n".join(_table(document, ())).strip("\n") + "\n"


def with_block(text: str, block: str) -> str:
    """Return a text with our block at its end, in place of an earlier one."""
    rest = without_block(text)
    gap = "\n" if rest.strip() else ""
    ending = "" if not rest or rest.endswith("\n") else "\n"
    return f"{rest}{ending}{gap}{_BEGIN}\n{block.strip()}\n{_END}\n"


def without_block(text: str) -> str:
    """Return a text without our block."""
    return _BLOCK.sub("", text)


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    values = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
    tables = {k: v for k, v in table.items() if isinstance(v, Mapping)}
    # A table without values is named where that says something: a driver with all defaults.
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
    raise TypeError(f"{value!r} can't be written as TOML")


def _string(value: str) -> str:
    # JSON's escapes are TOML's too, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
