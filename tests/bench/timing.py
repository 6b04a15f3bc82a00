"""Times programs with the helper spawn.c: medians of runs that take turns."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kit.process import run

_SOURCE = Path(__file__).with_name("spawn.c")


@dataclass(frozen=True, slots=True)
class Timed:
    """A program to time."""

    # What its times are listed under.
    name: str
    # The program's absolute path, and its arguments.
    argv: Sequence[str | Path]
    # Its whole environment.
    env: Mapping[str, str] = field(default_factory=dict)
    # File that it reads.
    stdin: Path | None = None
    # Copies to make before each start, outside the measurement: (from, to).
    restore: Sequence[tuple[Path, Path]] = ()

    def plan(self) -> list[str]:
        """The lines that spawn.c reads."""
        return [
            f"c {self.name}",
            *[f"a {word}" for word in self.argv],
            *[f"e {name}={value}" for name, value in self.env.items()],
            *([f"i {self.stdin}"] if self.stdin else []),
            *[line for source, to in self.restore for line in (f"f {source}", f"t {to}")],
        ]


class Timer:
    """The compiled helper."""

    def __init__(self, folder: Path) -> None:
        """Compile it into `folder`."""
        self._program = folder / "spawn"
        run(["gcc", "-O2", "-o", self._program, _SOURCE])

    def medians_ms(self, programs: Sequence[Timed], rounds: int) -> dict[str, float]:
        """Median milliseconds of each program.

        Raises:
            CommandFailedError: one of them failed.
        """
        taken = self.rounds_ms(programs, rounds)
        return {name: statistics.median(times) for name, times in taken.items()}

    def rounds_ms(self, programs: Sequence[Timed], rounds: int) -> dict[str, list[float]]:
        """Milliseconds of each program in each round, in turns, after a few unmeasured rounds.

        Raises:
            CommandFailedError: one of them failed.
        """
        warm = max(2, rounds // 20)
        lines = [f"r {rounds + warm}", *[line for timed in programs for line in timed.plan()]]
        output = run([self._program], stdin="\n".join(lines) + "\n").stdout
        taken: dict[str, list[float]] = {timed.name: [] for timed in programs}
        for line in output.splitlines():
            name, nanoseconds = line.rsplit(" ", 1)
            taken[name].append(int(nanoseconds) / 1e6)
        return {name: times[warm:] for name, times in taken.items()}


def seconds_of(do: Callable[[], object]) -> float:
    """How long a call takes."""
    begun = time.monotonic()
    do()
    return time.monotonic() - begun


def base_environment() -> dict[str, str]:
    """What a program needs that is more than our own binary."""
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
