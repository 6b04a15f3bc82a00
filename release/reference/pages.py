"""The generated parts of pages: tables between two comments, the rest of a page is written by hand.

A part begins with ``<!--made: KIND NAME-->`` and ends with ``<!--end-->``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

from provision.config import Config
from provision.errors import NotFoundError
from reference import fields
from reference.commands import Command, Option, decorator, everything, provision

REPOSITORY = Path(__file__).resolve().parents[2]
_PART = re.compile(r"(?ms)^(?P<start><!--made: (?P<kind>\S+) (?P<name>.+?)-->)\n.*?^<!--end-->$")
# How many commands have to have an option for it to be explained once.
_SEVERAL = 4
# How many options a command has to have of one other for that command to be named instead.
_SEVERAL_OF_ONE = 2
# Which kinds of parts there are; each makes the part of a name.
Maker = Callable[[str], str]


def stale(root: Path = REPOSITORY) -> dict[Path, str]:
    """Return the text of each page and schema that is not what the code says, by its path."""
    makers = _makers()
    schema = root / "docs/reference/provision-toml.schema.json"
    wanted = json.dumps(Config.model_json_schema(), indent=2) + "\n"
    found = {schema: wanted} if schema.read_text() != wanted else {}
    for page in sorted((root / "docs").rglob("*.md")):
        text = page.read_text()
        made = _PART.sub(partial(_made, makers=makers, page=page), text)
        if made != text:
            found[page] = made
    return found


def parts(text: str) -> list[tuple[str, str]]:
    """Return kind and name of each generated part of a page."""
    return [(match["kind"], match["name"]) for match in _PART.finditer(text)]


def _makers() -> Mapping[str, Maker]:
    commands = {
        " ".join(one.words): one for top in (provision(), decorator()) for one in everything(top)
    }
    return {
        "command": lambda name: "\n".join(_command(commands[name])),
        "shared-options": lambda _name: "\n".join(_table(_shared())),
        "table": fields.of_model,
        "vendor-file": fields.of_schema,
        "settings": fields.of_settings,
    }


def _made(match: re.Match[str], makers: Mapping[str, Maker], page: Path) -> str:
    try:
        content = makers[match["kind"]](match["name"])
    except KeyError as error:
        raise NotFoundError(
            f"'{page.name}' asks for '{match['kind']} {match['name']}', which the code does not"
            " have.",
            resolution=f"Correct the line '{match['start']}'.",
        ) from error
    return f"{match['start']}\n{content.strip()}\n<!--end-->"


@cache
def _shared() -> tuple[Option, ...]:
    """Return the options of provision that several commands have word for word."""
    counted = Counter(option for one in everything(provision()) for option in one.options)
    return tuple(option for option, number in counted.items() if number >= _SEVERAL)


@cache
def _first() -> Mapping[Option, Command]:
    """Return the first command that has an option, by the option."""
    found: dict[Option, Command] = {}
    for program in (provision(), decorator()):
        for command in everything(program):
            for option in command.options:
                found.setdefault(option, command)
    return found


@cache
def _everywhere() -> frozenset[Option]:
    """Return the options that every command of provision has word for word."""
    commands = [one for one in everything(provision()) if len(one.words) > 1 and one.options]
    return frozenset.intersection(*(frozenset(one.options) for one in commands))


def _command(command: Command) -> Iterator[str]:
    """Yield the options of a command; its heading has its name and arguments.

    Options that several commands share are explained once, and named here.
    """
    said = [option for option in command.options if option not in _everywhere()]
    shared = [option for option in said if option in _shared()]
    rest = [option for option in said if option not in shared]
    sources = Counter(_first().get(option, command) for option in rest)
    of_others = {
        other: [option for option in rest if _first().get(option) == other]
        for other, number in sources.items()
        if other != command and number >= _SEVERAL_OF_ONE
    }
    explained = [*shared, *(option for options in of_others.values() for option in options)]
    if own := tuple(option for option in rest if option not in explained):
        yield from _table(own)
        yield ""
    lists = [f"As of `{' '.join(other.words)}`: {_names(of_others[other])}." for other in of_others]
    if shared:
        lists.append(f"[Shared](#shared-options): {_names(shared)}.")
    yield " ".join(lists)


def _names(options: Iterable[Option]) -> str:
    return ", ".join(f"`{option.names[-1]}`" for option in options)


def _table(options: tuple[Option, ...]) -> Iterator[str]:
    yield "| option | meaning |"
    yield "|---|---|"
    for option in options:
        names = ", ".join(f"`{name}`" for name in option.names[:-1])
        last = f"`{option.names[-1]}{f' {option.value}' if option.value else ''}`"
        typed = f"{names}, {last}" if names else last
        default = option.default
        if default and not re.search(r"\s|…", default):
            default = f"`{default}`"
        text = option.text.rstrip(".").removesuffix("; may be given more than once")
        if option.is_repeatable:
            text = f"{text}; repeatable"
        if option in _everywhere():
            text = f"{text}; for every command"
        if default:
            text = f"{text} (default: {default})"
        yield f"| {typed.replace('|', chr(92) + '|')} | {_cell(text)} |"


def _cell(text: str) -> str:
    """Return a cell; what is quoted in a terminal is code on a page."""
    plain = " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")
    return re.sub(r"(?<![\w'])'([^']+)'(?![\w'])", r"`\1`", plain)
