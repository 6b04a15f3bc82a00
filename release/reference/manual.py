"""Manual pages of ``provision``: one for the program, one for each of its commands.

Source: man-pages(7) for the sections, groff_man(7) for the macros.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from reference.commands import Command, Option, everything, provision

_SECTION = "8"
_FILES = (
    ("/etc/provision/provision.toml", "What the host should have."),
    ("/var/lib/provision", "The store: what was built or pulled, for each driver and kernel."),
    ("/run/provision/status.json", "How each driver is, for programs."),
    ("/usr/share/provision/driver_images", "The catalogue of drivers."),
)


def pages(version: str, epoch: int) -> dict[str, str]:
    """Return the manual pages, by the names of their files.

    Args:
        version: Of the release.
        epoch: The release's time, in seconds since 1970.
    """
    day = datetime.fromtimestamp(epoch, UTC).date().isoformat()
    top = provision()
    heads = {command: _head(_name(command), day, version) for command in (top, *top.commands)}
    return {
        f"{_name(command)}.{_SECTION}": "\n".join([head, *_body(command), *_end(command, top), ""])
        for command, head in heads.items()
    }


def _name(command: Command) -> str:
    return "-".join(command.words)


def _head(name: str, day: str, version: str) -> str:
    return f'.TH {name.upper()} {_SECTION} "{day}" "provision {version}" "System administration"'


def _body(command: Command) -> Iterator[str]:
    yield ".SH NAME"
    yield f"{_plain(_name(command))} \\- {_plain(_first_lower(command.summary))}"
    yield ".SH SYNOPSIS"
    for number, one in enumerate(command.commands if len(command.words) > 1 else ()):
        yield ".br" if number else ""
        yield _bold(one.usage)
    if not command.commands or len(command.words) == 1:
        yield _bold(command.usage)
    yield ".SH DESCRIPTION"
    yield from _paragraphs(command.text)
    if len(command.words) == 1:
        yield ".SH COMMANDS"
        for one in command.commands:
            yield from (".TP", f".BR {_plain(_name(one))} ({_SECTION})", _plain(one.summary))
    else:
        for one in list(everything(command))[1:]:
            yield f".SH {' '.join(one.words[1:]).upper()}"
            yield from _paragraphs(one.text)
            yield from _option_list(one.options)
    if command.options:
        yield ".SH OPTIONS"
        yield from _option_list(command.options)


def _end(command: Command, top: Command) -> Iterator[str]:
    if command is top:
        yield ".SH FILES"
        for path, text in _FILES:
            yield from (".TP", f".I {_plain(path)}", _plain(text))
    yield ".SH SEE ALSO"
    others = [top] if command is not top else []
    named = [f".BR {_plain(_name(one))} ({_SECTION})," for one in others]
    yield from (*named, ".BR oci\\-decorator (8)")


def _option_list(options: tuple[Option, ...]) -> Iterator[str]:
    for option in options:
        names = ", ".join(f"\\fB{_plain(name)}\\fR" for name in option.names)
        value = f" \\fI{_plain(option.value)}\\fR" if option.value else ""
        notes = [f"Default: {option.default}." if option.default else ""]
        notes.append("May be given more than once." if option.is_repeatable else "")
        text = option.text.removesuffix("; may be given more than once.")
        whole = " ".join(part for part in (text, *notes) if part)
        yield from (".TP", names + value, _plain(whole) or "\\&")


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        yield _plain(paragraph)


def _bold(usage: str) -> str:
    return f".B {_plain(usage)}"


def _plain(text: str) -> str:
    """Return text that no macro and no escape is in."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("→", "\\(->").replace("…", "...")
    text = text.replace("'", "\\(aq")
    return f"\\&{text}" if text.startswith(".") else text


def _first_lower(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")
