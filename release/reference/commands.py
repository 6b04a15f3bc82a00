"""One model of a command line, read from what the programs themselves say.

``provision``: the tree of click. ``oci-decorator``: the texts that it prints as its help, which
lie in hooks/src/cli and which its own tests hold to its parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path

import click

from provision.cli import COMMANDS, group, load_command

_HELP = Path(__file__).resolve().parents[2] / "hooks/src/cli"
# In a usage: `[--root DIR]`, `--json`.
_GIVEN = re.compile(r"(?<=[ \[])(--?[A-Za-z][A-Za-z.-]*)(?: ([A-Z][A-Z=]*)(?![a-z]))?")
# `cdi: write there …`: which commands a row is about is said by the usage too.
_ABOUT = re.compile(r"^(?:check|cdi|hook|install-links)[a-z, ]*: ")
# `  --root DIR   folder …`, with what is meant on the same line or on those below.
_ROW = re.compile(r"^  (?P<names>-\S+(?: [A-Z=]+)?)(?:\s{2,}|\s(?=a file beside))(?P<text>\S.*)$")
_BARE_ROW = re.compile(r"^  (?P<names>-\S+ [A-Z=]+)$")
_COMMAND = re.compile(r"^  (?P<names>[a-z][A-Za-z, -]*?)(?:\s{2,}(?P<text>\S.*))?$")
_DEFAULT = re.compile(r"\s+\[(\[\w+\][^\]]+|[^\]]+)\]$")


@dataclass(frozen=True, slots=True)
class Option:
    """An option.

    Attributes:
        names: As they are typed: ``-v``, ``--verbose``.
        value: What it takes, such as ``DIR`` or ``debian:12|debian:13``; empty: nothing.
        text: What it does.
        default: What counts without it; empty: nothing is said.
        is_repeatable: Whether it may be given more than once.
    """

    names: tuple[str, ...]
    value: str
    text: str
    default: str = ""
    is_repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command, with those below it.

    Attributes:
        words: As it is typed: ``provision``, ``key``, ``generate``.
        arguments: What it takes besides options, as its usage shows it.
        summary: One sentence.
        text: The whole description; paragraphs have an empty line between them.
        options: Its options.
        commands: The commands below it.
    """

    words: tuple[str, ...]
    arguments: str
    summary: str
    text: str
    options: tuple[Option, ...]
    commands: tuple[Command, ...] = ()

    @property
    def usage(self) -> str:
        """The command line, as a manual shows it."""
        options = "[OPTIONS]" if self.options else ""
        below = "COMMAND …" if self.commands else ""
        return " ".join(part for part in (*self.words, options, self.arguments, below) if part)


def provision() -> Command:
    """Return the command line of ``provision``."""
    below = tuple(
        _from_click(load_command(name), ("provision", name), summary)
        for name, summary in COMMANDS.items()
    )
    top = _from_click(group, ("provision",), "")
    epilog = group.epilog or ""
    return Command(
        top.words, "", top.summary, f"{top.text}\n\n{epilog}".strip(), top.options, below
    )


def decorator() -> Command:
    """Return the command line of ``oci-decorator``."""
    texts = [(_HELP / name).read_text() for name in ("help.txt", "configure.txt")]
    options = {name: one for one in _options(texts[0]) for name in one.names}
    meanings = dict(_meanings(texts[0]))
    below: dict[tuple[str, ...], Command] = {}
    for line in _usage_lines(texts[0]):
        if not (found := _words(line)):
            continue
        named = dict[str, str](_GIVEN.findall(line))
        known = tuple(
            options.get(name) or Option((name,), value, "") for name, value in named.items()
        )
        arguments = "DIR" if found == [("install-links",)] else ""
        for words in found:
            text = meanings.get(" ".join(words), "")
            below[words] = Command(("oci-decorator", *words), arguments, text, text, known)
    configure = below["configure",]
    below["configure",] = Command(
        configure.words,
        "docker|containerd|crio|podman",
        configure.summary,
        configure.text,
        tuple(_options(texts[1])),
    )
    summary = texts[0].partition("\n")[0].partition(" - ")[2]
    return Command(
        ("oci-decorator",), "", summary, summary, (options["--config"],), tuple(below.values())
    )


def everything(command: Command) -> Iterator[Command]:
    """Yield a command and all below it."""
    yield command
    for one in command.commands:
        yield from everything(one)


def _from_click(command: click.Command, words: tuple[str, ...], summary: str) -> Command:
    text = cleandoc(command.help or "").replace("\b\n", "")
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    below = command.commands.values() if isinstance(command, click.Group) else ()
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    return Command(
        words=words,
        arguments=" ".join(one.make_metavar(click.Context(command)) for one in arguments),
        summary=summary or paragraphs[0],
        text="\n\n".join(paragraphs),
        options=tuple(
            _option(one)
            for one in command.params
            if isinstance(one, click.Option) and not one.hidden
        ),
        commands=tuple(_from_click(one, (*words, one.name or ""), "") for one in below if one.name),
    )


def _option(option: click.Option) -> Option:
    text = " ".join((option.help or "").split())
    value, default = "", ""
    if not option.is_flag:
        value = option.make_metavar(click.Context(click.Command("")))
    if option.show_default:
        default = str(option.default)
    elif found := _DEFAULT.search(text):
        # Where the default is no value, the help has it in words.
        text, default = text[: found.start()], found[1]
    names = (*sorted(option.opts, key=len), *option.secondary_opts)
    return Option(names, value, text, default, option.multiple)


def _usage_lines(text: str) -> Iterator[str]:
    """Yield the command lines below ``Usage:``, each on one line."""
    block = text.partition("Usage:\n")[2].partition("\n\n")[0]
    yield from (line.strip() for line in re.sub(r"\n {4,}", " ", block).splitlines())


def _words(line: str) -> list[tuple[str, ...]]:
    """Return the commands that a line of the usage is about."""
    rest = re.sub(r"^\S+ (\[[^\]]*\] )?", "", line)
    if not line.startswith("oci-decorator ") or not rest[0].isalpha():
        return []
    first = re.sub(r" [^a-z|].*$", "", re.sub(r"(?<! )\|.*$", "", rest))
    parts = [part.split() for part in first.split(" | ")]
    # `cdi` has commands below it; a command's own words come after all others.
    return [tuple(part[: 2 if part[0] == "cdi" else 1]) for part in parts]


def _meanings(text: str) -> Iterator[tuple[str, str]]:
    """Yield what each command does, from the block ``Commands:``."""
    block = text.partition("Commands:\n")[2].partition("\n\n")[0]
    names: list[str] = []
    lines: list[str] = []
    for line in [*block.splitlines(), "  end"]:
        match = _COMMAND.match(line) if not line.startswith("   ") else None
        if match is None:
            lines.append(line.strip())
            continue
        for name in names:
            yield name, " ".join(lines)
        names = [name.strip() for name in match["names"].split(", ")]
        lines = [match["text"]] if match["text"] else []


def _options(text: str) -> Iterator[Option]:
    """Yield the rows of the block ``Options:``."""
    block = text.partition("Options:\n")[2].partition("\n\n")[0]
    names, lines = "", list[str]()
    for line in [*block.splitlines(), "  --end END"]:
        match = _ROW.match(line) or _BARE_ROW.match(line)
        if match is None:
            lines.append(line.strip())
            continue
        if names:
            yield _row(names, " ".join(lines))
        names = match["names"]
        lines = [match["text"]] if "text" in match.groupdict() else []


def _row(names: str, text: str) -> Option:
    name, _, value = names.partition(" ")
    default = re.search(r"\(default: ([^)]+)\)\s*", text)
    if default is not None:
        text = (text[: default.start()] + text[default.end() :]).strip()
    repeatable = "; may be repeated" in text
    known = ("-config", name) if name == "--config" and "-config too" in text else (name,)
    text = text.replace("; may be repeated", "").replace("; -config too", "")
    text = _ABOUT.sub("", text)
    return Option(known, value, text, default[1] if default else "", repeatable)
