"""Results on standard output, and progress on standard error: the only place that prints.

A command hands its result to ``emit``, with views of it. With ``--json`` the result is printed as
one document; without, every view makes text of that same document. This module loads nothing that
takes long: rich is loaded for a table, or for the first event on a terminal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from provision.errors import ExitCode, ProvisionError, plain, redact
from provision.progress import (
    Event,
    Listener,
    Note,
    Output,
    Step,
    Transfer,
    listening,
    short,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from provision.pin import Pin

# A member of a document by its name, or what is made of the whole of it.
Field = str | Callable[[Any], object]
Lines = Callable[[Any], Iterable[str]]
View = str | Lines

_JSON = "provision.json"
_CODE = "provision.exit_code"
_COLOURS = {
    **dict.fromkeys(("ready", "ok", "pushed"), "green"),
    **dict.fromkeys(("pending", "unknown", "not-applicable"), "cyan"),
    **dict.fromkeys(("reboot-required", "warn"), "yellow"),
}
# Nothing is cut in a pipe or a file.
_WIDE = 500
_WIDTH = 100
_MEGABYTE = 1_000_000
_REFRESHES_PER_SECOND = 8
# A shorter step gets no line when it ends.
_WORTH_A_LINE = 0.2
# What stays in one line, to be pasted: what is in quotes, and a command to the end of its part.
_UNBROKEN = re.compile(r"'[^']*'|(?<=: )(?:provision|docker|apt-get|systemctl|ls|mv) [^;]*")


class Bad(str):
    """A line about a failure, which the journal of a unit keeps as an error."""

    __slots__ = ()


def want_json(context: click.Context, option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - as click calls it
    """Have the result of this command line printed as JSON."""
    del option
    context.meta[_JSON] = context.meta.get(_JSON, False) or value


def wants_json() -> bool:
    """Whether the result is printed as JSON."""
    return bool(click.get_current_context().meta.get(_JSON))


def exit_code() -> int:
    """The exit code of what was printed."""
    return int(click.get_current_context().meta.get(_CODE, ExitCode.DONE))


def emit(result: object, *views: View, code: int = ExitCode.DONE, is_input: bool = False) -> None:
    """Print the result of a command, and set the exit code of this process.

    Args:
        result: A mapping, a named tuple or a model.
        views: Lines for people, each made of the document of the result.
        code: What the process ends with; the document has it as ``exit_code``.
        is_input: Whether another program is to read it with its secrets, such as Kubernetes.
    """
    click.get_current_context().meta[_CODE] = code
    document = {**plain(result), "exit_code": int(code)}
    if not is_input:
        document = _without_secrets(document)
    if wants_json():
        click.echo(json.dumps(document, indent=2))
        return
    for view in views:
        for line in (view,) if isinstance(view, str) else view(document):
            _say(f"<3>{line}" if isinstance(line, Bad) and _is_journal() else line)


def fail(error: ProvisionError, *, as_json: bool) -> int:
    """Print an error and return its exit code."""
    if as_json:
        document = {"error": error.document(), "exit_code": int(error.exit_code)}
        click.echo(json.dumps(document, indent=2))
    else:
        remark(f"{click.style('Error:', fg='red', bold=True)} {error.message}")
        for line in (error.details or "").splitlines():
            # A file's only mistake is in the message already.
            if not error.message.endswith(f": {line}"):
                remark(f"  {line}")
        if error.resolution:
            remark(f"{click.style('What to do:', bold=True)} {error.resolution}")
    return int(error.exit_code)


def members(value: object, *names: str) -> dict[str, Any]:
    """Return the members of a document that a value has under the same names."""
    return {name: getattr(value, name) for name in names}


def of_pin(pin: Pin) -> dict[str, Any]:
    """Return what a document says of an artifact."""
    return {
        "driver": pin.driver.name,
        "version": pin.driver.version,
        "kernel": pin.kernel.release,
        "digest": pin.digest,
    }


def _without_secrets(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a document that any user may see: settings, servers and programs are quoted in it."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {name: _without_secrets(one) for name, one in value.items()}
    return [_without_secrets(one) for one in value] if isinstance(value, list) else value


def text(value: object) -> str:
    """Return a value as text for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value)) or "-"
    return str(value)


def table(rows: Field, columns: Mapping[str, Field], *, otherwise: str | None = None) -> Lines:
    """Return the view of a table.

    Args:
        columns: What each column has of a row; ``size>`` is aligned to the right.
        otherwise: Said in place of a table without rows.
    """

    def view(document: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON
        found = list(_pick(document, rows) or ())
        if not found and otherwise is not None:
            yield otherwise
            return
        yield _drawn(
            columns, [[text(_pick(r, field)) for field in columns.values()] for r in found]
        )

    return view


def fields(members: Mapping[str, Field]) -> Lines:
    """Return the view of a record, a line for each name; ``log?`` is left out without a value."""

    def view(document: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON
        found = {name: _pick(document, field) for name, field in members.items()}
        shown = {
            name.rstrip("?"): text(value)
            for name, value in found.items()
            if value is not None or not name.endswith("?")
        }
        width = max(map(len, shown), default=0)
        for name, value in shown.items():
            first, *more = value.splitlines() or [""]
            yield f"{name:<{width}}  {first}"
            yield from (f"{'':<{width}}  {line}" for line in more)

    return view


def each(rows: Field, view: Lines) -> Lines:
    """Return the view of every row, one below the other."""

    def views(document: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON
        for row in _pick(document, rows) or ():
            yield from view(row)

    return views


def lines(rows: Field, form: str) -> Lines:
    """Return the view of a line for each row: ``form`` has its members in braces."""
    return each(rows, lambda row: [form.format(row, **(row if isinstance(row, dict) else {}))])


def advice(item: Mapping[str, Any]) -> Iterator[str]:
    """Yield the details of a failure, and what to do about it."""
    for line in (item.get("details") or "").splitlines():
        yield f"  {line}"
    if item.get("resolution"):
        yield f"  What to do: {item['resolution']}"


def megabytes(size: int) -> str:
    """Return a number of bytes as text for people."""
    return f"{size / 1_000_000:.1f} MB" if size >= _MEGABYTE / 10 else f"{size / 1000:.1f} kB"


def size_of(field: str) -> Field:
    """Return the column of a number of bytes."""
    return lambda row: None if row[field] is None else megabytes(row[field])


def coloured(state: str, said: str | None = None) -> str:
    """Return a state, or what is said of it, in its colour, which files and pipes don't get."""
    return click.style(said or state, fg=_COLOURS.get(state, "red"), bold=True)


def remark(said: str) -> None:
    """Print a line beside the result, on standard error."""
    _say(said, err=True)


def _say(line: str, *, err: bool = False) -> None:
    stream = sys.stderr if err else sys.stdout
    if stream.isatty() and "\n" not in line:
        line = _wrapped(line, shutil.get_terminal_size().columns)
    # https://no-color.org: set, and not empty.
    click.echo(line, err=err, color=False if os.environ.get("NO_COLOR") else None)


def _wrapped(line: str, width: int) -> str:
    if len(click.unstyle(line)) <= width:
        return line
    whole = _UNBROKEN.sub(lambda found: found[0].replace(" ", "\0"), line)
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    parts = textwrap.wrap(
        whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(parts).replace("\0", " ")


def _pick(document: Any, field: Field) -> Any:  # noqa: ANN401 - any JSON
    return document.get(field) if isinstance(field, str) else field(document)


def _drawn(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    from rich import box  # noqa: PLC0415 - takes a while to load
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        drawn.add_column(
            column.removesuffix(">"), justify="right" if column.endswith(">") else "left"
        )
    for row in rows:
        drawn.add_row(*map(Text.from_ansi, row))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_WIDE)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().removesuffix("\n")


def _is_journal() -> bool:
    """Whether standard output is the journal's; source: sd-daemon(3)."""
    if (journal := os.environ.get("JOURNAL_STREAM")) is None:
        return False
    output = os.fstat(sys.stdout.fileno())
    return journal == f"{output.st_dev}:{output.st_ino}"


@contextmanager
def progress() -> Iterator[None]:
    """Show events until the block ends."""
    verbose = bool(click.get_current_context().find_root().params["verbose"])
    with ExitStack() as opened:

        @cache
        def screen() -> Listener:
            return opened.enter_context(_on_screen(verbose=verbose))

        def show(event: Event) -> None:
            screen()(event)

        with listening(_redacted(show if sys.stderr.isatty() else _line_by_line(verbose=verbose))):
            yield


@contextmanager
def _on_screen(*, verbose: bool) -> Iterator[Listener]:
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.live import Live  # noqa: PLC0415 - as above

    console = Console(stderr=True)
    screen = Screen(console, verbose=verbose)
    with Live(
        get_renderable=screen.render,
        console=console,
        refresh_per_second=_REFRESHES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield screen
        screen.end_step()


class Screen:
    """Draws the current step with its time and its last line, below the steps that are done."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        from rich.spinner import Spinner  # noqa: PLC0415 - as above

        self._console = console
        self._verbose = verbose
        self._spinner = Spinner("dots")
        self._begun = time.monotonic()
        self._step: Step | None = None
        self._doing = ""
        self._last = ""

    def __call__(self, event: Event) -> None:
        """Draw an event."""
        match event:
            case Note(said):
                self._console.out(said, highlight=False)
                self._doing = said
                self._last = ""
            case Step(number, total, said):
                self.end_step()
                self._step = event
                self._doing = f"Step {number}/{total}: {said}"
                self._last = ""
                self._begun = time.monotonic()
            case Output(said):
                self._last = said
                if self._verbose:
                    self._console.out(f"  {said}", style="dim", highlight=False)
            case Transfer(what, done, total):
                end = f" of {total / _MEGABYTE:.0f}" if total else ""
                self._last = f"{what}: {done / _MEGABYTE:.0f}{end} MB"

    def end_step(self) -> None:
        """Print a line about the step that has ended."""
        seconds = time.monotonic() - self._begun
        if self._step is not None and seconds >= _WORTH_A_LINE:
            line = short(self._doing, self._console.width - 10)
            self._console.out(f"{line}  {seconds:.1f} s", highlight=False)
        self._step = None

    def render(self) -> RenderableType:
        """Draw the current state."""
        from rich.console import Group  # noqa: PLC0415 - as above
        from rich.text import Text  # noqa: PLC0415 - as above

        elapsed = time.monotonic() - self._begun
        width = max(self._console.width - 12, 20)
        self._spinner.update(text=Text(f"{short(self._doing, width)}  {elapsed:.0f} s"))
        return Group(self._spinner, Text(f"  {short(self._last, width)}", style="dim"))


def _redacted(show: Listener) -> Listener:
    """Return a listener that shows no secrets, such as the password in a mirror's address."""

    def showing(event: Event) -> None:
        match event:
            case Transfer(what):
                show(event._replace(what=redact(what)))
            case Note(said) | Step(text=said) | Output(said):
                show(event._replace(text=redact(said)))

    return showing


def _line_by_line(*, verbose: bool) -> Listener:
    def show(event: Event) -> None:
        match event:
            case Note(said):
                remark(said)
            case Step(number, total, said):
                remark(f"Step {number}/{total}: {short(said, _WIDTH)}")
            case Output(said) if verbose:
                remark(f"  {said}")
            case _:
                pass

    return show
