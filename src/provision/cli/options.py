"""Commands as functions that have their options as defaults, and options that several share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from provision.cli.output import exit_code, want_json
from provision.errors import ProvisionError, UsageError
from provision.files import followed

if TYPE_CHECKING:
    from provision.catalogue import Catalogue

Parameter = Callable[[str], click.Parameter]


class _OutputPath(click.Path):
    """Where a command writes: a link to a file or a device is no file to replace."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        return followed(Path(os.fsdecode(super().convert(value, param, ctx))))


# Characters of a line that is not cut.
_WHOLE = 1000
OUTPUT_FILE = _OutputPath(dir_okay=False, path_type=Path)
OUTPUT = _OutputPath(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def option(
    declaration: str,
    said: str,
    read: Callable[[Any], object] | None = None,
    **more: Any,  # noqa: ANN401 - as click takes them
) -> Any:  # noqa: ANN401 - the default of a parameter
    """Return an option as its help shows it: ``--kernel RELEASE``; without a value it is a flag.

    ``read`` makes of its value what the command gets.
    """
    if read is not None:
        more["callback"] = lambda _context, _parameter, value: read(value)
    word, _, metavar = declaration.partition(" ")
    if metavar:
        more["metavar"] = metavar
    elif "type" not in more:
        more["is_flag"] = True
    if declaration == "--kernel RELEASE":
        more["shell_complete"] = _complete_kernels
    more["show_default"] = "default" in more and not said.endswith("]")
    return lambda name: click.Option([word, name], help=said, **more)


def argument(
    metavar: str,
    cls: type[click.Argument] = click.Argument,
    **more: Any,  # noqa: ANN401 - as click takes them
) -> Any:  # noqa: ANN401 - the default of a parameter
    """Return an argument as the usage shows it: ``[DRIVER]…``."""
    more["nargs"] = -1 if metavar.endswith("…") else 1
    more["required"] = not metavar.startswith("[")
    if "DRIVER" in metavar or metavar == "[NAME]":
        more["shell_complete"] = _complete_drivers
    return lambda name: cls([name], metavar=metavar, **more)


class Group(click.Group):
    """A group whose help says all of what each command is for."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, each with its whole first sentence."""
        found = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_WHOLE)) for name, one in found])


class _Group(NamedTuple):
    kind: type[Any]
    options: Mapping[str, Parameter]


def group(kind: type[Any], /, **options: Parameter) -> Any:  # noqa: ANN401 - the default of a parameter
    """Return options that become one object: ``kind`` has a field for each of them."""
    return _Group(kind, options)


def command(
    name: str,
    below: click.Group | None = None,
    cls: type[click.Command] = click.Command,
    **more: Any,  # noqa: ANN401 - as click takes them
) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that makes a command of a function, with ``--json``.

    Its exit code is that of the result that it printed (``emit``).

    The default of each of its parameters says the option, the argument or the options for it.
    """

    def make(function: Callable[..., None]) -> click.Command:
        groups: dict[str, _Group] = {}
        parameters: list[click.Parameter] = []
        for field, one in inspect.signature(function).parameters.items():
            if isinstance(one.default, _Group):
                groups[field] = one.default
                parameters += [make(name) for name, make in one.default.options.items()]
            else:
                parameters.append(one.default(field))
        parameters.append(as_json("json"))

        @wraps(function)
        def gathered(**given: object) -> int:
            for field, (kind, options) in groups.items():
                given[field] = kind(**{option: given.pop(option) for option in options})
            function(**given)
            return exit_code()

        help_text = inspect.getdoc(function)
        made = cls(name, callback=gathered, params=parameters, help=help_text, **more)
        if below is not None:
            below.add_command(made)
        return made

    return make


def refuse(is_wrong: object, message: str, resolution: str | None = None) -> None:
    """Refuse a command line; without a resolution, the help says what is possible."""
    if is_wrong:
        path = click.get_current_context().command_path
        raise UsageError(message, resolution=resolution or f"'{path} --help' lists the options.")


def _machine(name: str | None) -> str | None:
    if name is None:
        return None
    from provision.pin import machine_of  # noqa: PLC0415 - loads the models

    return machine_of(name)


def _complete_drivers(ctx: click.Context, param: click.Parameter, start: str) -> list[str]:
    """Return the drivers of the catalogue whose names begin with a text."""
    del param
    return [name for name in _catalogue(ctx).names if name.startswith(start)]


def _complete_flavours(ctx: click.Context, param: click.Parameter, start: str) -> list[str]:
    """Return the flavours of the driver that is named, else those of all."""
    del param
    catalogue = _catalogue(ctx)
    # click has no arguments yet where the value of an option is what is missing.
    words = (ctx.params.get("driver"), *ctx.args)
    found: set[str] = set()
    for name in [word for word in words if word in catalogue.names] or catalogue.names:
        with suppress(OSError, ProvisionError):
            found.update(catalogue.entry(name).recipe.flavours)
    return sorted(name for name in found if name.startswith(start))


def _catalogue(ctx: click.Context) -> Catalogue:
    from provision.build.workspace import load_settings  # noqa: PLC0415 - only to complete a word

    given = ctx.params
    folders = given.get("catalogues") or ()
    return load_settings(given.get("root") or Path("/"), catalogues=folders).catalogue


def _complete_kernels(ctx: click.Context, param: click.Parameter, start: str) -> list[str]:
    del param
    from provision.host.kernels import find_kernels  # noqa: PLC0415 - only to complete a word

    root = ctx.params.get("root") or Path("/")
    bootable = find_kernels(root, ask=lambda _argv: None).bootable
    return [release for release in bootable if release.startswith(start)]


as_json = option(
    "--json", "Print one JSON document and nothing else.", expose_value=False, callback=want_json
)
root = option("--root DIR", "Root of the host.", type=EXISTING_FOLDER, default=Path("/"))
# A host's root is filled before it boots for the first time.
root_or_new = option(
    "--root DIR",
    "Root of the host; 'install' makes it where it is missing.",
    type=FOLDER,
    default=Path("/"),
)
catalogues = option(
    "--catalogue DIR",
    "Additional folder of drivers; may be given more than once.",
    type=EXISTING_FOLDER,
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
trial = option(
    "--trial",
    "Boot the kernel in a virtual machine and load the modules there; what it refuses has failed.",
)
dry_run = option("--dry-run", "Only show what would be done.")
distro = option("--distro ID:VERSION", "Distro of the kernel, such as debian:12.  [the host's]")
flavour = option(
    "--flavour NAME", "Flavour of the driver.  [its default]", shell_complete=_complete_flavours
)
arch = option(
    "--arch ARCH",
    "Architecture of the kernel, such as arm64. For another than this machine's, programs run"
    " in QEMU, which is slow.  [the host's]",
    read=_machine,
)
network = option(
    "--network MODE", "Network of the containers that download, as 'docker run' takes it."
)
registry = option(
    "--registry HOST[:PORT][/PREFIX]", "Registry.  [[registry] address of provision.toml]"
)
