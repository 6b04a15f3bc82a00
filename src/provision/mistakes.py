"""Says in plain words what is wrong with the keys of a document.

pydantic finds the mistakes; its own messages name shapes of its models. Values are never quoted:
they may be secret. Source of the kinds of mistakes: https://docs.pydantic.dev/latest/errors/validation_errors/
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
)

from pydantic import BaseModel, ValidationError

from provision.errors import Mistake

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_REASONS = {
    "missing": "missing",
    "string_type": "must be text in quotes",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
    "frozen_set_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "none_required": "must be left out",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "union_tag_not_found": "missing",
    "union_tag_invalid": "must be {expected_tags}",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "too_long": "must have at most {max_length} items",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "json_invalid": "not valid JSON: {error}",
}
_CLOSE = 0.6

Place = tuple[int | str, ...]


def mistakes_of(error: ValidationError, model: type[BaseModel] | None = None) -> list[Mistake]:
    """Return a validation error's complaints as mistakes with dotted paths."""
    items = error.errors(include_url=False, include_input=False)
    found = [_found(model, item) for item in items]
    places = [place for place, _ in found]
    return [
        Mistake(".".join(map(str, place)), reason)
        for item, (place, reason) in zip(items, found, strict=True)
        # A list with wrong items is reported as "too short" as well.
        if item["type"] != "too_short" or not _has_wrong_items(place, places)
    ]


def _has_wrong_items(place: Place, others: list[Place]) -> bool:
    return any(len(other) > len(place) and other[: len(place)] == place for other in others)


def _found(model: type[BaseModel] | None, item: ErrorDetails) -> tuple[Place, str]:
    """Return where a mistake is, in the document's own keys, and what it is."""
    kind, context = item["type"], item.get("ctx", {})
    place, known = _follow(model, item["loc"])
    if kind == "extra_forbidden":
        return place, _unknown(str(place[-1]), known)
    if kind in {"union_tag_not_found", "union_tag_invalid"}:
        # It is the key that chooses the model that is wrong.
        place = (*place, str(context["discriminator"]).strip("'"))
    return place, _reason(kind, context, item["msg"])


def _unknown(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if close := difflib.get_close_matches(key, names, n=1, cutoff=_CLOSE):
        return f"unknown key; did you mean '{close[0]}'?"
    return f"unknown key; known here: {', '.join(names)}" if names else "unknown key"


def _reason(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind in {"string_too_short", "too_short"}:
        least = context["min_length"]
        what = "characters" if kind == "string_too_short" else "items"
        return "must not be empty" if least == 1 else f"must have at least {least} {what}"
    if kind in _REASONS:
        return _REASONS[kind].format_map(context)
    return message.removeprefix("Value error, ")


def _follow(model: object, location: Place) -> tuple[Place, list[str]]:
    """Follow a location of pydantic's through a model.

    Returns:
        The location without the names of a union's members, which are no keys of the document;
        the keys that are known where its last part stands.
    """
    place: list[int | str] = []
    here: list[object] = [model]
    known: list[str] = []
    for part in location:
        members = [member for one in here for member in _members(one)]
        known = [key for member in members for key in _keys(member)]
        chosen = [member for member in members if _is_named(member, part)]
        if str(part).startswith("<"):
            here = members
        elif len(members) > 1 and chosen:
            here = chosen
        else:
            place.append(part)
            here = [inner for member in members for inner in _inside(member, part)]
    return tuple(place), known


def _members(annotation: object) -> Iterator[object]:
    """Yield what an annotation allows: itself, or the members of a union."""
    if get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) in {Union, UnionType}:
        for member in get_args(annotation):
            yield from _members(member)
    elif annotation is not None and annotation is not type(None):
        yield annotation


def _keys(annotation: object) -> list[str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [field.alias or name for name, field in annotation.model_fields.items()]
    return []


def _is_named(annotation: object, part: int | str) -> bool:
    """Whether a location's part is the tag of a member of a union: its one ``kind``."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return False
    return any(
        get_origin(field.annotation) is Literal and get_args(field.annotation) == (part,)
        for field in annotation.model_fields.values()
    )


def _inside(annotation: object, part: int | str) -> Iterator[object]:
    """Yield what stands at a key or an index of a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if part in {name, field.alias}:
                yield field.annotation
        return
    inner = [one for one in get_args(annotation) if one is not Ellipsis]
    match get_origin(annotation), part:
        case origin, str() if origin in {dict, Mapping}:
            yield inner[-1]
        case _, int() if inner:
            yield inner[part] if part < len(inner) else inner[-1]
