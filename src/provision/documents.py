"""Reads TOML and JSON into strict models; says all that is wrong with a document in plain words."""

import codecs
import difflib
import errno
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from provision.errors import ConfigError, Mistake, NotFoundError, ProvisionError
from provision.trust import open_regular

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# The size limit of documents; a larger one is a mistake or an attack.
MAX_BYTES = 16 * 1024 * 1024


class Frozen(BaseModel):
    """Base of all data models: immutable, strict, no unknown keys.

    Errors never quote values: they may be secret.

    Attributes:
        described_in: The page that describes the keys, for the models of files that people write.
    """

    described_in: ClassVar[str | None] = None

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        hide_input_in_errors=True,
        # A command pays only for the models that it reads.
        defer_build=True,
    )


class Foreign(BaseModel):
    """Base of the models of foreign documents: strict types, further members are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", hide_input_in_errors=True)


# An example of what matches a pattern: people read no regular expressions.
EXAMPLES: dict[str, str] = {}


def like(pattern: str, example: str, *, max_length: int | None = None) -> StringConstraints:
    """Return the constraint of a text that people write; what is wrong is said by an example."""
    EXAMPLES[pattern] = example
    return StringConstraints(pattern=pattern, max_length=max_length)


ModelT = TypeVar("ModelT", bound=Frozen)


def default(model: type[ModelT]) -> ModelT:
    """Return a model's own defaults, as the default of a field: no command pays for a check."""
    return cast("ModelT", model.model_construct())


def load_toml(path: Path, model: type[ModelT]) -> ModelT:
    """Read a TOML file."""
    text, resolution = _read(path), how_to_correct(path, model)
    try:
        data = tomllib.loads(text)
        # JSON mode, because strict validation of Python values would refuse a list for a tuple.
        document = json.dumps(data, default=str)
    except (ValueError, RecursionError) as error:
        # Besides the library's own: numbers of thousands of digits, thousands of brackets.
        mistakes = [Mistake("", f"not valid TOML: {error}")]
        raise ConfigError(str(path), mistakes, resolution=resolution) from error
    if mistakes := [Mistake(place, "has a NUL character in it") for place in _with_nul(data)]:
        raise ConfigError(str(path), mistakes, resolution=resolution)
    return parse_json(document, model, name=str(path), resolution=resolution)


def how_to_correct(path: Path, model: type[Frozen]) -> str | None:
    """Return what to do about mistakes in a file; None if people don't write files of its kind."""
    if model.described_in is None:
        return None
    return f"Correct the file ({model.described_in} describes its keys): ${{EDITOR:-vi}} {path}"


def _with_nul(value: object, place: str = "") -> Iterator[str]:
    """Yield the keys of texts with NUL characters, which no path, address or argument may have."""
    inside: Iterable[tuple[object, object]] = ()
    match value:
        case str() if "\0" in value:
            yield place
        case dict():
            inside = value.items()
        case list():
            inside = enumerate(value)
    for key, one in inside:
        yield from _with_nul(one, f"{place}.{key}" if place else str(key))


def load_json(path: Path, model: type[ModelT]) -> ModelT:
    """Read a JSON file; arguments and errors as ``load_toml``."""
    return parse_json(_read(path), model, name=str(path))


def load_if_readable(path: Path, model: type[ModelT]) -> ModelT | None:
    """Read a JSON file of our own; None: it is missing or can't be read."""
    try:
        return load_json(path, model)
    except (OSError, ProvisionError):
        return None


def parse_json(
    text: str, model: type[ModelT], *, name: str, resolution: str | None = None
) -> ModelT:
    """Validate JSON text."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(name, mistakes_of(error, model), resolution=resolution) from error


@contextmanager
def refusing(message: str, *, resolution: str | None = None) -> Iterator[None]:
    """Turn a model's validation error into a ``ProvisionError``, for foreign data."""
    try:
        yield
    except ValidationError as error:
        raise ProvisionError(
            message,
            resolution=resolution,
            details="\n".join(map(str, mistakes_of(error))),
        ) from error


def _read(path: Path) -> str:
    try:
        with open_regular(path) as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no file '{path}'.", resolution=f"Check the path: ls -l {path.parent}"
        ) from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ConfigError(str(path), [Mistake("", str(error.strerror))]) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(str(path), [Mistake("", f"larger than {MAX_BYTES} bytes")])
    if data.startswith(codecs.BOM_UTF8):
        problem = "begins with a byte order mark; save it as UTF-8 without BOM"
        raise ConfigError(str(path), [Mistake("", problem)])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            str(path), [Mistake("", f"not UTF-8 text (byte {error.start})")]
        ) from error


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


def _found(model: type[BaseModel] | None, item: "ErrorDetails") -> tuple[Place, str]:
    """Return where a mistake is, in the document's own keys, and what it is."""
    place, known = _follow(model, item["loc"])
    match item["type"]:
        case "extra_forbidden":
            return place, _unknown(str(place[-1]), known)
        case "union_tag_not_found" | "union_tag_invalid" as kind:
            # It is the key that chooses the model that is wrong; its value is not quoted.
            key = item["ctx"]["discriminator"].strip("'")
            is_missing = kind == "union_tag_not_found"
            known_kinds = f"Input should be one of {item['ctx'].get('expected_tags')}"
            return (*place, key), "Field required" if is_missing else known_kinds
        case "string_pattern_mismatch":
            example = EXAMPLES.get(item["ctx"]["pattern"])
            return place, f"must look like {example}" if example else "has a wrong form"
    return place, item["msg"].removeprefix("Value error, ")


def _unknown(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if close := difflib.get_close_matches(key, names, n=1, cutoff=_CLOSE):
        return f"unknown key; did you mean '{close[0]}'?"
    return f"unknown key; known here: {', '.join(names)}" if names else "unknown key"


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
