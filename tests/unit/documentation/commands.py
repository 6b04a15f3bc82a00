"""Command lines of `provision` in texts, by the program's own parser."""

from __future__ import annotations

import click

from provision.cli import COMMANDS, load_command


def refusal(words: list[str], *, is_whole: bool = True) -> str | None:
    """Why the program refuses a command line; None: it takes it.

    Values are not looked at: a file may be missing here.

    Args:
        is_whole: Whether it can be run as it is; else it is only named, by what it needs to be told
            from others.
    """
    name, *rest = [word for word in words if word not in {"-v", "--verbose"}] or [""]
    if name not in COMMANDS:
        return f"there is no command '{name}'"
    command = load_command(name)
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    if isinstance(command, click.Group) and not command.invoke_without_command:
        return f"'{command.name}' needs a command" if is_whole or rest else None
    known = {option for one in command.params for option in one.opts} | {"--help"}
    if unknown := {word.partition("=")[0] for word in rest if word.startswith("--")} - known:
        return f"there is no option {unknown}"
    if "--help" in rest or not is_whole:
        return None
    return _lack(command, rest)


def _lack(command: click.Command, words: list[str]) -> str | None:
    try:
        given, more, _ = command.make_parser(click.Context(command)).parse_args(list(words))
    except click.UsageError as error:
        return error.format_message()
    # Of a driver or a Pin, the command itself wants one.
    if {"driver", "pin_file"} <= given.keys() | {one.name for one in command.params} and not (
        given.get("driver") or given.get("pin_file")
    ):
        return "it names neither a driver nor a Pin"
    lacking = [one.name for one in command.params if one.required and not given.get(one.name or "")]
    if lacking:
        return f"{lacking} is missing"
    return f"{more} is too much" if more else None
