"""Reads TOML and JSON documents into strict models, reporting all mistakes of a file together."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from provision.errors import ConfigError, Mistake, NotFoundError

# The largest document that makes sense; a bigger one is a mistake or an attack.
MAX_BYTES = 16 * 1024 * 1024


class Frozen(BaseModel):
    """Base of all data models: immutable, strict, no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


ModelT = TypeVar("ModelT", bound=Frozen)


def load_toml(path: Path, model: type[ModelT]) -> ModelT:
    """Read a TOML file.

    Args:
        path: The file.
        model: What it must look like.

    Raises:
        NotFoundError: There is no such file.
        ConfigError: It is not TOML, or not what the model wants; names every key.
    """
    text = _read(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), [Mistake("", f"not valid TOML: {error}")]) from error
    # JSON mode, because strict validation of Python values would refuse a list for a tuple.
    return parse_json(json.dumps(data, default=str), model, name=str(path))


def load_json(path: Path, model: type[ModelT]) -> ModelT:
    """Read a JSON file; arguments and errors as ``load_toml``."""
    return parse_json(_read(path), model, name=str(path))


def parse_json(text: str, model: type[ModelT], *, name: str) -> ModelT:
    """Validate JSON text.

    Args:
        text: The document.
        model: What it must look like.
        name: What error messages call it.

    Raises:
        ConfigError: It is not what the model wants; names every key.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(name, mistakes_of(error)) from error


def mistakes_of(error: ValidationError) -> list[Mistake]:
    """Return a validation error's complaints as mistakes with dotted paths."""
    return [
        Mistake(".".join(str(part) for part in item["loc"]), _reason(item["type"], item["msg"]))
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def _reason(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "missing":
        return "missing"
    return message.removeprefix("Value error, ")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file '{path}'.") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(str(path), [Mistake("", f"larger than {MAX_BYTES} bytes")])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            str(path), [Mistake("", f"not UTF-8 text (byte {error.start})")]
        ) from error
