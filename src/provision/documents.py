"""Reads TOML and JSON documents into strict models; reports all mistakes of a file together."""

from __future__ import annotations

import codecs
import json
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from provision.errors import ConfigError, Mistake, NotFoundError, ProvisionError
from provision.mistakes import mistakes_of

# The size limit of documents; a larger one is a mistake or an attack.
MAX_BYTES = 16 * 1024 * 1024


class Frozen(BaseModel):
    """Base of all data models: immutable, strict, no unknown keys.

    Errors never quote values: they may be secret.

    Attributes:
        described_in: The page that describes the keys, for the models of files that people write.
    """

    described_in: ClassVar[str | None] = None

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)


ModelT = TypeVar("ModelT", bound=Frozen)


def load_toml(path: Path, model: type[ModelT]) -> ModelT:
    """Read a TOML file.

    Raises:
        NotFoundError: There is no such file.
    """
    text = _read(path)
    try:
        data = tomllib.loads(text)
        # JSON mode, because strict validation of Python values would refuse a list for a tuple.
        document = json.dumps(data, default=str)
    except (ValueError, RecursionError) as error:
        # Besides the library's own: numbers of thousands of digits, thousands of brackets.
        raise ConfigError(
            str(path),
            [Mistake("", f"not valid TOML: {error}")],
            resolution=how_to_correct(path, model),
        ) from error
    if mistakes := [Mistake(place, "has a NUL character in it") for place in _with_nul(data)]:
        raise ConfigError(str(path), mistakes, resolution=how_to_correct(path, model))
    return parse_json(document, model, name=str(path), resolution=how_to_correct(path, model))


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


def _without_waiting(path: str, flags: int) -> int:
    """Open a file without blocking on a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read(path: Path) -> str:
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError(str(path), [Mistake("", "not a regular file")])
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no file '{path}'.", resolution=f"Check the path: ls -l {path.parent}"
        ) from error
    except IsADirectoryError as error:
        raise ConfigError(str(path), [Mistake("", "a folder, where a file should be")]) from error
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
