"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from provision.cli.output import want_json
from provision.files import followed

ResultT = TypeVar("ResultT")
CommandT = TypeVar("CommandT", bound=Callable[..., Any] | click.Command)


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
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
_EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def option(
    declaration: str,
    said: str,
    *names: str,
    **more: Any,  # noqa: ANN401 - as click takes them
) -> Callable[[CommandT], CommandT]:
    """Return an option as its help shows it: ``--kernel RELEASE``; without a value it is a flag."""
    name, _, metavar = declaration.partition(" ")
    if metavar:
        more["metavar"] = metavar
    elif "type" not in more:
        more["is_flag"] = True
    return click.option(name, *names, help=said, **more)


def _machine(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    if name is None:
        return None
    from provision.pin.architectures import machine_of  # noqa: PLC0415 - loads the models

    return machine_of(name)


as_json = option(
    "--json", "Print one JSON document and nothing else.", expose_value=False, callback=want_json
)
root = option(
    "--root DIR", "Root of the host.", type=_EXISTING_FOLDER, default=Path("/"), show_default=True
)
# A host's root is filled before it boots for the first time.
root_or_new = option(
    "--root DIR",
    "Root of the host; 'install' makes it where it is missing.",
    type=FOLDER,
    default=Path("/"),
    show_default=True,
)
catalogue = option(
    "--catalogue DIR",
    "Additional folder of drivers; may be given more than once.",
    "catalogues",
    type=_EXISTING_FOLDER,
    multiple=True,
)
insecure = option("--insecure", "Accept an unsigned image of a registry.")
public_key = option(
    "--public-key FILE",
    "Public key, or folder of public keys, to trust in place of those of provision.toml.",
    type=click.Path(exists=True, path_type=Path),
)
allow_downgrade = option(
    "--allow-downgrade", "Accept an artifact of a registry that is older than the one before it."
)
again = option("--again", "Do it although the result is there already.")
replace_files = option("--replace", "Replace foreign and changed files; copies of them are kept.")
dry_run = option("--dry-run", "Only show what would be done.")
distro = option("--distro ID:VERSION", "Distro of the kernel, such as debian:12.  [the host's]")
flavour = option("--flavour NAME", "Flavour of the driver.  [its default]")
arch = option(
    "--arch ARCH",
    "Architecture of the kernel, such as arm64. For another than this machine's, programs run in"
    " QEMU, which is slow.  [the host's]",
    callback=_machine,
)
network = option(
    "--network MODE", "Network of the containers that download, as 'docker run' takes it."
)
registry = option(
    "--registry HOST[:PORT][/PREFIX]",
    "Registry.  [[registry] address of provision.toml]",
    "address",
)


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
