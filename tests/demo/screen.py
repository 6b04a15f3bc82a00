"""What the demo shows: steps, the commands it runs, their output, and what it checked."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kit.process import Completed, run

_LINES = 24


class DemoError(Exception):
    """Something was not as it has to be; the message says what was expected and what was seen."""


@dataclass
class Screen:
    """The terminal, and how long each step took."""

    console: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=True))
    # Title of a finished step → its seconds.
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, number: int, title: str) -> Iterator[None]:
        """One step: a heading, and its time when it went well.

        Raises:
            DemoError: as inside, with the step's number and title in front.
        """
        name = f"{number}. {title}"
        self.console.print()
        self.console.rule(Text(name, style="bold"), align="left")
        begin = time.monotonic()
        try:
            yield
        except (AssertionError, DemoError, RuntimeError) as error:
            raise DemoError(f"step {name}: {error}") from error
        self.seconds[name] = time.monotonic() - begin

    def say(self, text: str) -> None:
        """One line of our own."""
        self.console.print(text, markup=False)

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        shown: str | None = None,
        live: bool = False,
        lines: int = _LINES,
        excerpt: Callable[[str], str] = str,
    ) -> Completed:
        """Echo a command, run it, show what it said; its status is the caller's to judge.

        `shown` replaces the echoed command line, where that has flags of the private engine in it;
        `excerpt` picks what is worth showing.
        """
        words = [Path(argv[0]).name, *map(str, argv[1:])]
        self.console.print(Text(f"$ {shown or shlex.join(words)}", style="bold cyan"))
        sys.stdout.flush()
        done = run(argv, env=env, check=False, live=live)
        self._show(excerpt(done.output), lines)
        return done

    def check(self, holds: object, what: str, seen: object) -> None:
        """Say that `what` holds.

        Raises:
            DemoError: it doesn't.
        """
        if not holds:
            raise DemoError(f"expected: {what}\nseen: {seen}")
        self.console.print(Text(f"✓ {what}", style="green"))

    def _show(self, output: str, limit: int) -> None:
        lines = output.rstrip().splitlines()
        for line in lines[:limit]:
            self.console.print(Text(f"  {line}", style="dim"))
        if 0 < limit < len(lines):
            self.console.print(Text(f"  … {len(lines) - limit} more lines", style="dim"))
