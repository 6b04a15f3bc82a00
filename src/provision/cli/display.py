"""Tables on standard output, and progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import click
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from provision.agent.status import NAME_A_DRIVER, ArtifactStatus, DriverStatus, Status
from provision.cli.options import for_people
from provision.errors import redact
from provision.progress import Event, Note, Output, Progress, Step, Tally, Transfer

_STYLES = {"ready": "green", "pending": "cyan", "reboot-required": "yellow"}
_COLUMNS = ("driver", "kernel", "", "state", "version", "artifact", "modules")
_LOADED = {"yes": "loaded", "no": "not loaded", "partly": "some loaded", "other": "another build"}
_WIDE = 500


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; ``columns`` whose name ends in ``>`` are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(
            column.removesuffix(">"), justify="right" if column.endswith(">") else "left"
        )
    for row in rows:
        table.add_row(*(for_people(value) for value in row))
    _console().print(table)


def show(status: Status) -> None:
    """Print the status."""
    _console().print(rendered(status))


def watch(look: Callable[[], Status], *, seconds: float, sleep: Callable[[float], None]) -> None:
    """Show the status repeatedly, until the command is interrupted.

    Args:
        look: Returns the current status.
        seconds: Time between two calls.
        sleep: Waits.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    with Live(rendered(look()), console=_console(), auto_refresh=False) as live:
        while True:
            sleep(seconds)
            live.update(rendered(look()), refresh=True)


def rendered(status: Status) -> RenderableType:
    """Return the status as text and a table."""
    if status.state == "not-configured":
        head = Text("Nothing is configured", style=_style(status.state))
    else:
        head = Text.assemble(("This host is ", ""), (status.state, _style(status.state)))
    if status.kernels.running:
        head.append(f"; kernel {status.kernels.running}")
    if status.kernels.pending:
        head.append(f", next {', '.join(status.kernels.pending)}")
    table = Table(*_COLUMNS, box=box.SIMPLE_HEAD, pad_edge=False)
    for driver in status.drivers:
        for artifact in driver.kernels:
            table.add_row(*_row(driver, artifact))
    said = [*status.kernels.notes, *status.kernels.doubts]
    said += [f"{driver.name}: {note}" for driver in status.drivers for note in driver.notes]
    notes = [Text(note, style="yellow") for note in said]
    if not status.drivers:
        return Group(head, *notes, Text.assemble(("What to do: ", "bold"), NAME_A_DRIVER))
    return Group(head, *notes, table, *_reasons(status))


def _row(driver: DriverStatus, artifact: ArtifactStatus) -> list[Text]:
    is_running = artifact.role == "running"
    modules = _LOADED.get(driver.loaded or "", "") if is_running else ""
    cells = (driver.name, artifact.release, artifact.role)
    rest = (artifact.version or "-", artifact.digest or "-", modules)
    return [*map(Text, cells), Text(artifact.state, style=_style(artifact.state)), *map(Text, rest)]


def _reasons(status: Status) -> Iterator[Text]:
    """Yield why drivers are not ready, and what to do."""
    for driver in status.drivers:
        for artifact in driver.kernels:
            if artifact.unsigned is not None:
                yield Text.assemble(
                    (f"{driver.name} for {artifact.release}: ", "bold"),
                    (f"{artifact.digest} is unsigned; it came from {artifact.unsigned}", "yellow"),
                )
            if artifact.reason is None:
                continue
            yield Text.assemble(
                (f"{driver.name} for {artifact.release}: ", "bold"), artifact.reason
            )
            details = artifact.failure.details if artifact.failure else None
            if details:
                yield Text("\n".join(f"  {line}" for line in details.splitlines()), style="dim")
            if artifact.resolution:
                yield Text.assemble(("What to do: ", "bold"), artifact.resolution)


def _style(state: str) -> str:
    return _STYLES.get(state, "red")


def _console() -> Console:
    console = Console(highlight=False, markup=False)
    # A pipe or a file gets whole names: nothing is cut there.
    return console if console.is_terminal else Console(highlight=False, markup=False, width=_WIDE)


_REFRESHES_PER_SECOND = 8
_WIDTH = 100
# A shorter step gets no line when it ends.
_WORTH_A_LINE = 0.2
_MB = 1_000_000
_BAR_WIDTH = 30


@contextmanager
def shown(*, verbose: bool) -> Iterator[Progress]:
    """Yield a progress that shows its events until the block ends.

    Args:
        verbose: Whether to show every line of the output of builds.
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
    """Prints a line for each event; for logs, pipes and CI."""

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
    """Draws the current step with its time and its last line, below the steps that are done."""

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
                self._tally = event if event.total else None

    def end_step(self) -> None:
        """Print a line about the step that has ended."""
        seconds = time.monotonic() - self._begun
        if self._step is not None and seconds >= _WORTH_A_LINE:
            line = _short(self._doing, self._console.width - 10)
            self._console.print(Text.assemble(line, (f"  {seconds:.1f} s", "green")))
        self._step = None

    def render(self) -> RenderableType:
        """Draw the current state."""
        if self._tally is not None:
            return self._render_tally(self._tally)
        elapsed = time.monotonic() - self._begun
        width = max(self._console.width - 12, 20)
        self._spinner.update(text=Text(f"{_short(self._doing, width)}  {elapsed:.0f} s"))
        return Group(self._spinner, Text(f"  {_short(self._last, width)}", style="dim"))

    def _render_tally(self, tally: Tally) -> RenderableType:
        """Draw a bar, the running cells below it, and the last line of output."""
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
