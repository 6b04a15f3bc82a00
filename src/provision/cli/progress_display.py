"""Shows progress on standard error: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.text import Text

from provision.errors import redact
from provision.progress import Event, Note, Output, Progress, Step, Tally, Transfer

_REFRESHES_PER_SECOND = 8
_WIDTH = 100
# Steps that take less are not worth a line of their own afterwards.
_WORTH_A_LINE = 0.2
_MB = 1_000_000
_BAR_WIDTH = 30


@contextmanager
def shown(*, verbose: bool) -> Iterator[Progress]:
    """Yield a progress that shows what it receives, until the block ends.

    Args:
        verbose: Whether to show every line that a build prints.
    """
    if not sys.stderr.isatty():
        yield _redacted(_Lines(verbose=verbose))
        return
    console = Console(stderr=True)
    screen = _Screen(console, verbose=verbose)
    with Live(
        get_renderable=screen.render,
        console=console,
        refresh_per_second=_REFRESHES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield _redacted(screen)
        screen.end_step()


def _redacted(show: Progress) -> Progress:
    """Return a progress that shows no secrets, such as the password in a mirror's address."""

    def showing(event: Event) -> None:
        match event:
            case Transfer(what):
                show(replace(event, what=redact(what)))
            case Note(text) | Step(text=text) | Output(text):
                show(replace(event, text=redact(text)))
            case Tally():
                show(event)

    return showing


class _Lines:
    """A line an event; for logs, pipes and CI."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose

    def __call__(self, event: Event) -> None:
        match event:
            case Note(text):
                click.echo(text, err=True)
            case Step(number, total, text):
                click.echo(f"Step {number}/{total}: {_short(text, _WIDTH)}", err=True)
            case Output(text) if self._verbose:
                click.echo(f"  {text}", err=True)
            case _:
                pass


class _Screen:
    """The current step with its time and last line below what is done."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose
        self._spinner = Spinner("dots")
        self._begun = time.monotonic()
        self._step: Step | None = None
        self._doing = ""
        self._last = ""
        self._tally: Tally | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case Note(text):
                self._console.print(Text(text))
                self._doing = text
                self._last = ""
            case Step(number, total, text):
                self.end_step()
                self._step = event
                self._doing = f"Step {number}/{total}: {text}"
                self._last = ""
                self._begun = time.monotonic()
            case Output(text):
                self._last = text
                if self._verbose:
                    self._console.print(Text(f"  {text}", style="dim"))
            case Transfer(what, done, total):
                end = f" of {total / _MB:.0f}" if total else ""
                self._last = f"{what}: {done / _MB:.0f}{end} MB"
            case Tally():
                self._tally = event

    def end_step(self) -> None:
        """Leave a line about the step that ends."""
        seconds = time.monotonic() - self._begun
        if self._step is not None and seconds >= _WORTH_A_LINE:
            line = _short(self._doing, self._console.width - 10)
            self._console.print(Text.assemble(line, (f"  {seconds:.1f} s", "green")))
        self._step = None

    def render(self) -> RenderableType:
        """Draw what goes on at this moment."""
        if self._tally is not None:
            return self._render_tally(self._tally)
        elapsed = time.monotonic() - self._begun
        width = max(self._console.width - 12, 20)
        self._spinner.update(text=Text(f"{_short(self._doing, width)}  {elapsed:.0f} s"))
        return Group(self._spinner, Text(f"  {_short(self._last, width)}", style="dim"))

    def _render_tally(self, tally: Tally) -> RenderableType:
        """Draw a bar, what runs below it, and the last line that something printed."""
        width = max(self._console.width - 4, 20)
        done = sum(tally.done.values())
        counts = ", ".join(f"{count} {name}" for name, count in tally.done.items() if count)
        self._spinner.update(text=Text(f"{done} of {tally.total}" + (counts and f": {counts}")))
        lines = [Text(f"  {_short(name, width)}") for name in tally.running]
        last = Text(f"  {_short(self._last, width)}", style="dim")
        bar = ProgressBar(total=max(tally.total, 1), completed=done, width=_BAR_WIDTH)
        return Group(self._spinner, bar, *lines, last)


def _short(text: str, width: int) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= width else one_line[: width - 1] + "…"
