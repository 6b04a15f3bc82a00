"""Reads our own JSON files key by key: what is unknown is kept, what can't be read is reported.

For files that outlive the program that wrote them. A file that one program writes and the same one
reads is better read by a strict model (``provision.documents``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from provision.files import sync_directory, write_atomic

_SUFFIX = ".unreadable-"
_DIGITS = 8
# Returns a value as it is used here.
#
# Raises:
#     TypeError: It is of another type.
Kind = Callable[[Any], Any]
_LONGEST = 40
# Whole numbers up to here are exact for every reader of JSON: RFC 8259, section 6.
_LARGEST = 2**53 - 1


def set_aside(path: Path) -> Path:
    """Keep a copy of a file that is about to be written, and return its path.

    The same content gets the same name, so a run that is killed may do this again.

    Raises:
        OSError: The folder can't be written.
    """
    try:
        data = path.read_bytes()
    except OSError:
        # A defective disk: all that can be kept of the file is the file.
        kept = path.with_name(f"{path.name}{_SUFFIX}disk")
        path.rename(kept)
        sync_directory(path.parent)
        return kept
    digest = hashlib.sha256(data).hexdigest()[:_DIGITS]
    kept = path.with_name(f"{path.name}{_SUFFIX}{digest}")
    write_atomic(kept, data, mode=0o600)
    return kept


def copies_of(path: Path) -> tuple[Path, ...]:
    """Return the copies of a file that were set aside and are still there."""
    return tuple(sorted(path.parent.glob(f"{path.name}{_SUFFIX}*")))


def read_object(
    data: object, kinds: Mapping[str, Kind], *, where: str, problems: list[str]
) -> dict[str, Any]:
    """Return the known keys of an object with their values, and under ``extra`` the unknown ones.

    A known key whose value is of another kind is left out.

    Args:
        data: What was read.
        kinds: The known keys.
        where: What the object is called in a problem: dotted keys; empty for the whole file.
        problems: What can't be read is added to it.
    """
    if not isinstance(data, dict):
        problems.append(f"{where or 'the file'}: {_name(data)} in place of an object")
        return {"extra": {}}
    found: dict[str, Any] = {"extra": {k: v for k, v in data.items() if k not in kinds}}
    for key, kind in kinds.items():
        if key not in data:
            continue
        try:
            found[key] = kind(data[key])
        except TypeError:
            path = f"{where}.{key}" if where else key
            problems.append(f"{path}: {_name(data[key])} can't be understood there")
    return found


def text(value: Any) -> str:  # noqa: ANN401 - anything that JSON has
    """Take a string."""
    return str(_one_of(value, str))


def any_number(value: Any) -> int:  # noqa: ANN401
    """Take a whole number of any size."""
    return int(_one_of(value, int))


def number(value: Any) -> int:  # noqa: ANN401
    """Take a whole number, of those that can be counted with."""
    found = any_number(value)
    if abs(found) > _LARGEST:
        raise TypeError
    return found


def flag(value: Any) -> bool:  # noqa: ANN401
    """Take true or false."""
    if not isinstance(value, bool):
        raise TypeError
    return value


def texts(value: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Take a list of strings."""
    return tuple(text(one) for one in _one_of(value, list))


def numbers(value: Any) -> dict[str, float]:  # noqa: ANN401
    """Take an object whose values are numbers, which infinity and NaN are not."""
    return {key: _fraction(one) for key, one in _one_of(value, dict).items()}


def members(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """Take an object."""
    found: dict[str, Any] = _one_of(value, dict)
    return found


def optional(kind: Kind) -> Kind:
    """Take null too."""
    return lambda value: None if value is None else kind(value)


def _fraction(value: Any) -> float:  # noqa: ANN401
    # Compared before it is converted: JSON has numbers of any length.
    if not -_LARGEST <= _one_of(value, int, float) <= _LARGEST:
        raise TypeError
    return float(value)


def _one_of(value: Any, *types: type) -> Any:  # noqa: ANN401
    # To Python, true is a number.
    if isinstance(value, bool) or not isinstance(value, types):
        raise TypeError
    return value


def _name(value: object) -> str:
    name = repr(value)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
