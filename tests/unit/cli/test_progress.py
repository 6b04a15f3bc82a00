"""How progress looks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import click
import pytest
from rich.console import Console

from provision.cli import output
from provision.cli.output import Screen
from provision.progress import Event, Note, Output, Step, Transfer, report

_EVENTS: list[Event] = [
    Note("Pulling"),
    Step(1, 2, "RUN make  &&   more"),
    Output("CC demo.o"),
    Step(2, 2, "x" * 300),
    Transfer("Unpacking", 5_000_000, 10_000_000),
]


@contextmanager
def shown(*, verbose: bool) -> Iterator[None]:
    """The progress of a command, called with or without -v."""
    context = click.Context(click.Command("provision"))
    context.params["verbose"] = verbose
    with context, output.progress():
        yield


@pytest.mark.parametrize(("verbose", "count"), [(False, 3), (True, 4)])
def test_off_a_terminal_an_event_is_a_line(
    capsys: pytest.CaptureFixture[str], *, verbose: bool, count: int
) -> None:
    with shown(verbose=verbose):
        for event in _EVENTS:
            report(event)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == count
    assert lines[:2] == ["Pulling", "Step 1/2: RUN make && more"]
    assert lines[-1].endswith("…")
    assert ("  CC demo.o" in lines) == verbose


def test_no_progress_shows_a_mirrors_password(capsys: pytest.CaptureFixture[str]) -> None:
    url = "https://me:hush@mirror.example/debian"
    with shown(verbose=True):
        for event in (Note(url), Step(1, 2, url), Output(url), Transfer(url, 1)):
            report(event)
    printed = capsys.readouterr().err
    assert "hush" not in printed
    assert printed.count("https://me:***@mirror.example/debian") == 3


def test_on_a_terminal_done_steps_stay_with_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    time = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(time)))
    console = Console(file=written, force_terminal=True, width=80, color_system=None)
    screen = Screen(console, verbose=True)
    for event in _EVENTS:
        screen(event)
        console.print(screen.render())
    screen.end_step()
    text = written.getvalue()
    assert "Step 1/2: RUN make && more" in text
    assert " s\n" in text
    assert "Unpacking: 5 of 10 MB" in text
    assert "CC demo.o" in text
