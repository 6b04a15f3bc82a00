"""Progress on a terminal: done steps with their time, and below them what is being done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from provision.progress import Event, Listener, Note, Output, Step, Transfer, short

_REFRESHES_PER_SECOND = 8
# A shorter step gets no line when it ends.
_WORTH_A_LINE = 0.2
_MB = 1_000_000


@contextmanager
def on_screen(*, verbose: bool) -> Iterator[Listener]:
    """Yield a listener that draws its events until the block ends."""
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

    def end_step(self) -> None:
        """Print a line about the step that has ended."""
        seconds = time.monotonic() - self._begun
        if self._step is not None and seconds >= _WORTH_A_LINE:
            line = short(self._doing, self._console.width - 10)
            self._console.print(Text.assemble(line, (f"  {seconds:.1f} s", "green")))
        self._step = None

    def render(self) -> RenderableType:
        """Draw the current state."""
        elapsed = time.monotonic() - self._begun
        width = max(self._console.width - 12, 20)
        self._spinner.update(text=Text(f"{short(self._doing, width)}  {elapsed:.0f} s"))
        return Group(self._spinner, Text(f"  {short(self._last, width)}", style="dim"))
