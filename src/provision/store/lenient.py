"""Reads provision's JSON files key by key: unknown keys are kept, and bad values are reported.

It serves files that outlive the version of provision that wrote them. Files that the same version
writes and reads have strict models (``provision.documents``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from provision.files import sync_directory, write_atomic

_SUFFIX = ".unreadable-"
_DIGITS = 8
# Returns the value that a JSON value stands for; raises TypeError for a value of another type.
Kind = Callable[[Any], Any]
_LONGEST = 40
# Whole numbers up to here are exact for every reader of JSON: RFC 8259, section 6.
_LARGEST = 2**53 - 1


def set_aside(path: Path) -> Path:
    """Keep a copy of a file that is about to be overwritten, and return the copy's path.

    The same content gets the same name, so the next run may repeat what a killed run did.

    Raises:
        OSError: The folder can't be written.
    """
    try:
        data = path.read_bytes()
    except OSError:
        # The disk is defective: the file can be kept, but not copied.
        kept = path.with_name(f"{path.name}{_SUFFIX}disk")
        path.rename(kept)
        sync_directory(path.parent)
        return kept
    digest = hashlib.sha256(data).hexdigest()[:_DIGITS]
    kept = path.with_name(f"{path.name}{_SUFFIX}{digest}")
    write_atomic(kept, data, mode=0o600)
    return kept


def copies_of(path: Path) -> tuple[Path, ...]:
    """Return the copies of a file that ``set_aside`` made and that still exist."""
    return tuple(sorted(path.parent.glob(f"{path.name}{_SUFFIX}*")))


def read_object(
    data: object, kinds: Mapping[str, Kind], *, where: str, problems: list[str]
) -> dict[str, Any]:
    """Return the known keys of an object with their values, and the unknown ones under ``extra``.

    A known key whose value is of another kind is left out.

    Args:
        data: The parsed JSON value.
        kinds: The known keys, and what reads their values.
        where: The object's name in problems: dotted keys; empty for the whole file.
        problems: A line for each value that can't be read is added to this list.
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
    """Accept a string."""
    return str(_one_of(value, str))


def any_number(value: Any) -> int:  # noqa: ANN401
    """Accept a whole number of any size."""
    return int(_one_of(value, int))


def number(value: Any) -> int:  # noqa: ANN401
    """Accept a whole number that is exact for every reader of JSON."""
    found = any_number(value)
    if abs(found) > _LARGEST:
        raise TypeError
    return found


def flag(value: Any) -> bool:  # noqa: ANN401
    """Accept true or false."""
    if not isinstance(value, bool):
        raise TypeError
    return value


def texts(value: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Accept a list of strings."""
    return tuple(text(one) for one in _one_of(value, list))


def numbers(value: Any) -> dict[str, float]:  # noqa: ANN401
    """Accept an object whose values are numbers, except for infinity and NaN."""
    return {key: _fraction(one) for key, one in _one_of(value, dict).items()}


def members(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """Accept an object."""
    found: dict[str, Any] = _one_of(value, dict)
    return found


def optional(kind: Kind) -> Kind:
    """Accept null too."""
    return lambda value: None if value is None else kind(value)


def _fraction(value: Any) -> float:  # noqa: ANN401
    # The comparison comes before the conversion: JSON has numbers of any length.
    if not -_LARGEST <= _one_of(value, int, float) <= _LARGEST:
        raise TypeError
    return float(value)


def _one_of(value: Any, *types: type) -> Any:  # noqa: ANN401
    # In Python, True is an int.
    if isinstance(value, bool) or not isinstance(value, types):
        raise TypeError
    return value


def _name(value: object) -> str:
    name = repr(value)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
