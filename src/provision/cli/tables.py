"""Tables on standard output: lists, and the host's status."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from provision.agent.status import ArtifactStatus, DriverStatus, Status
from provision.cli.options import for_people

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
    # Off a terminal, nothing is cut: who reads a pipe wants whole names.
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=500)
    console.print(table)


def show(status: Status) -> None:
    """Print the status."""
    console = _console()
    console.print(rendered(status))


def watch(look: Callable[[], Status], *, seconds: float, sleep: Callable[[float], None]) -> None:
    """Show the status until interrupted.

    Args:
        look: Returns the status of this moment.
        seconds: How long to wait between two looks.
        sleep: Waits.

    Raises:
        KeyboardInterrupt: Someone has seen enough.
    """
    with Live(rendered(look()), console=_console(), auto_refresh=False) as live:
        while True:
            sleep(seconds)
            live.update(rendered(look()), refresh=True)


def rendered(status: Status) -> RenderableType:
    """Return what to draw."""
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
        return Group(head, *notes, Text("provision.toml names no driver."))
    return Group(head, *notes, table, *_reasons(status))


def _row(driver: DriverStatus, artifact: ArtifactStatus) -> list[Text]:
    is_running = artifact.role == "running"
    modules = _LOADED.get(driver.loaded or "", "") if is_running else ""
    cells = (driver.name, artifact.release, artifact.role)
    rest = (artifact.version or "-", artifact.digest or "-", modules)
    return [*map(Text, cells), Text(artifact.state, style=_style(artifact.state)), *map(Text, rest)]


def _reasons(status: Status) -> Iterator[Text]:
    """Yield why anything is not ready, and what to do."""
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
    # Off a terminal nothing is cut.
    return console if console.is_terminal else Console(highlight=False, markup=False, width=_WIDE)
