"""Options that several commands share, and how commands print their results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from provision.files import followed

ResultT = TypeVar("ResultT")


class _OutputPath(click.Path):
    """Where a command writes: a link to a file or a device is no file to replace."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        return followed(Path(os.fsdecode(super().convert(value, param, ctx))))


OUTPUT_FILE = _OutputPath(dir_okay=False, path_type=Path)
OUTPUT = _OutputPath(path_type=Path)
_EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)

as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."
)
root = click.option(
    "--root",
    type=_EXISTING_FOLDER,
    default=Path("/"),
    show_default=True,
    metavar="DIR",
    help="Root of the host.",
)
# A host's root is filled before it boots for the first time.
root_or_new = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    metavar="DIR",
    help="Root of the host; 'install' makes it where it is missing.",
)
catalogue = click.option(
    "--catalogue",
    "catalogues",
    type=_EXISTING_FOLDER,
    multiple=True,
    metavar="DIR",
    help="Additional folder of drivers; may be given more than once.",
)
insecure = click.option("--insecure", is_flag=True, help="Accept an unsigned image of a registry.")
public_key = click.option(
    "--public-key",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Public key, or folder of public keys, to trust in place of those of provision.toml.",
)
allow_downgrade = click.option(
    "--allow-downgrade",
    is_flag=True,
    help="Accept an artifact of a registry that is older than the one before it.",
)
again = click.option("--again", is_flag=True, help="Do it although the result is there already.")
replace_files = click.option(
    "--replace", is_flag=True, help="Replace foreign and changed files; copies of them are kept."
)
dry_run = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
distro = click.option(
    "--distro", metavar="ID:VERSION", help="Distro of the kernel, such as debian:12.  [the host's]"
)
flavour = click.option("--flavour", metavar="NAME", help="Flavour of the driver.  [its default]")


def option_group(
    name: str, kind: type[Any], *decorators: Callable[[Any], Any]
) -> Callable[[Callable[..., ResultT]], Callable[..., ResultT]]:
    """Return a decorator that adds options to a command and passes their values as one object.

    Args:
        name: The command's parameter that receives the object.
        kind: The class of the object: a dataclass with a field for each option, of the same name.
        decorators: The options of click, in the order of the help text.
    """
    names = [field.name for field in fields(kind)]

    def add(command: Callable[..., ResultT]) -> Callable[..., ResultT]:
        @wraps(command)
        def gathered(**given: object) -> ResultT:
            values: dict[str, Any] = {field: given.pop(field) for field in names}
            return command(**given, **{name: kind(**values)})

        added: Callable[..., ResultT] = gathered
        for decorator in reversed(decorators):
            added = decorator(added)
        return added

    return add


def print_json(document: Mapping[str, Any]) -> None:
    """Print the one document of a command."""
    click.echo(json.dumps(document, indent=2))


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print each name with its value on a line; None becomes a dash."""
    rows = [(name, for_people(value)) for name, value in fields]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        first, *more = value.splitlines() or [""]
        click.echo(f"{name:<{width}}  {first}")
        for line in more:
            click.echo(f"{'':<{width}}  {line}")


def megabytes(size: int) -> str:
    """Return a number of bytes as text for people."""
    return f"{size / 1_000_000:.1f} MB"


def for_people(value: object) -> str:
    """Return a value as text for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
