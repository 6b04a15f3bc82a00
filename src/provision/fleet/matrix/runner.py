"""Runs a compatibility matrix: takes its cells one by one and writes the result of each.

An error of the machine (a full disk, an engine or archive that does not answer) ends the run,
because other cells would fail in the same way.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from provision.build.workspace import Settings
from provision.engine.docker_api import Engine
from provision.errors import InUseError, ProvisionError
from provision.files import LONGEST_WAIT_S
from provision.fleet.matrix.cell_builds import (
    TOOLS,
    CellBuilder,
    RunOptions,
    shared_by,
)
from provision.fleet.matrix.cells import Cell, Column, Planned
from provision.fleet.matrix.results import BusyError, Results
from provision.fleet.matrix.shared_layers import SharedLayers
from provision.progress import Event, Note, Output, Progress, Step, Tally, Transfer, silent

# How long builds may take to stop before the process ends without waiting for them.
_GRACE_S = 10.0
_LOOK_AGAIN_S = 0.5


class _StoppedError(BaseException):
    """Unwinds a build whose run is to stop."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a run."""

    # Cells that were built in this run, with or without success.
    built: list[Cell] = field(default_factory=list)
    unchanged: list[Cell] = field(default_factory=list)
    troubles: list[tuple[Cell, ProvisionError]] = field(default_factory=list)
    # Cells that the run did not reach.
    left: list[Cell] = field(default_factory=list)


class MatrixRun:
    """A run over cells.

    Args:
        open_engine: Connects to the engine; each thread has a connection of its own.
        progress: Called by one thread at a time.
    """

    def __init__(
        self,
        settings: Settings,
        results: Results,
        options: RunOptions,
        open_engine: Callable[[], Engine],
        *,
        progress: Progress = silent,
    ) -> None:
        self._results = results
        self._options = options
        self._open_engine = open_engine
        self._progress = progress
        self._lock = threading.Lock()
        self._clearing = threading.Lock()
        self._stop = threading.Event()
        self._finished = threading.Event()
        self._active = 0
        self._defect: Exception | None = None
        self._is_over = False
        self._queue: deque[Planned] = deque()
        # Cells that another matrix is building come last, so that two runs don't wait for each
        # other.
        self._postponed: deque[Planned] = deque()
        self._postponed_since: dict[Cell, float] = {}
        self._running: dict[Cell, None] = {}
        self._counts: Counter[str] = Counter()
        self._total = 0
        self._columns: Counter[Column] = Counter()
        self._layers = SharedLayers(results.folder)
        self._builder = CellBuilder(settings, results, options, self._layers)
        self._outcome = Outcome()

    def run(self, planned: Sequence[Planned]) -> Outcome:
        """Get a result for every cell.

        Raises:
            KeyboardInterrupt: Ctrl-C; results so far are kept, and all builds are stopped.
        """
        for one in planned:
            # A result of a newer provision ends the run before anything is built.
            self._results.read(one.cell)
        self._queue.extend(planned)
        self._total = len(planned)
        for one in planned:
            self._columns.update(shared_by(one.cell.column))
        for column in self._columns:
            # Leftovers of a run that was killed.
            if self._layers.noted(column):
                self._layers.postpone(column)
        self._active = max(1, min(self._options.jobs, len(planned)))
        try:
            for _ in range(self._active):
                # They end with the process if they do not end by themselves.
                threading.Thread(target=self._work, daemon=True).start()
            self._finished.wait()
        except BaseException:
            # The engine stops a build whose client disconnects, as it does when this process ends.
            self._stop.set()
            self._finished.wait(_GRACE_S)
            raise
        if self._defect is not None:
            raise self._defect
        self._outcome.left = [one.cell for one in (*self._queue, *self._postponed)]
        return self._outcome

    def _work(self) -> None:
        """Take cells until none is left, in a thread of its own."""
        try:
            with ExitStack() as stack, suppress(_StoppedError):
                self._take_cells(self._connecting(stack))
        except Exception as error:
            # The run raises it where it is seen; the other threads end after their cells.
            self._defect = self._defect or error
            self._is_over = True
        finally:
            with self._lock:
                self._active -= 1
                if self._active == 0:
                    self._finished.set()

    def _take_cells(self, engine: Callable[[], Engine]) -> None:
        while (planned := self._next()) is not None:
            try:
                with self._results.claimed(planned.cell):
                    self._do(planned, engine)
            except BusyError:
                self._postpone(planned)
            except ProvisionError as error:
                self._ended(planned.cell, "trouble", error)
            except OSError as error:
                full = ProvisionError(
                    f"{planned.cell}: {error.filename or 'the disk'}: {error.strerror or error}.",
                    resolution="Free some space, or correct the permissions of the folder. Then run"
                    " the command again to continue.",
                )
                self._ended(planned.cell, "trouble", full)
            self._clear_layers(engine)

    def _next(self) -> Planned | None:
        with self._lock:
            queue = self._queue or self._postponed
            if self._is_over or self._stop.is_set() or not queue:
                return None
            planned = queue.popleft()
            self._running[planned.cell] = None
            self._report()
        if planned.cell in self._postponed_since:
            # The other matrix may need the time of a build.
            self._stop.wait(_LOOK_AGAIN_S)
        return planned

    def _postpone(self, planned: Planned) -> None:
        """Put back a cell that another matrix is building."""
        cell, now = planned.cell, time.monotonic()
        if now - self._postponed_since.get(cell, now) >= LONGEST_WAIT_S:
            error = InUseError(
                f"Another machine or process has held {cell} for {LONGEST_WAIT_S:g} s.",
                resolution="Look for the process (ps -C provision), then run the command again.",
            )
            self._ended(cell, "trouble", error)
            return
        with self._lock:
            if cell not in self._postponed_since:
                self._postponed_since[cell] = now
                text = f"Another process is building {cell}; this run looks at it again later"
                self._progress(Note(text))
            self._postponed.append(planned)
            del self._running[cell]

    def _clear_layers(self, engine: Callable[[], Engine]) -> None:
        """Remove the layers of kernels whose cells are done.

        Layers that another matrix still uses are removed later, or by that matrix.
        """
        with self._lock:
            done = self._layers.take_pending(lambda column: self._columns[column] == 0)
        # Layers of kernels come first: they are based on those of the tools.
        done.sort(key=lambda column: column.kernel == TOOLS)
        with self._clearing, suppress(ProvisionError, OSError):
            for column in done:
                if not self._layers.clear(column, engine):
                    self._layers.postpone(column)

    def _do(self, planned: Planned, engine: Callable[[], Engine]) -> None:
        """Get a result for a cell; the caller holds its lock."""
        cell = planned.cell
        begun = time.monotonic()
        state, result = self._builder.decide(planned, engine, self._progress_of(cell))
        if result is None:
            self._outcome.unchanged.append(cell)
        elif planned.refusal is not None:
            self._results.write(result)
        else:
            seconds = {**result.seconds, "total": round(time.monotonic() - begun, 3)}
            said = {"seconds": seconds, "forced": self._options.force}
            self._results.write(result.model_copy(update=said))
            self._outcome.built.append(cell)
        self._ended(cell, state)
        if result is not None and planned.refusal is None:
            cause = f": {result.cause}" if state == "failed" else ""
            with self._lock:
                self._progress(Note(f"{state:<7} {cell}{cause}"))

    def _connecting(self, stack: ExitStack) -> Callable[[], Engine]:
        """Return a function that connects to the engine once, until the stack is closed."""
        opened: list[Engine] = []

        def engine() -> Engine:
            if not opened:
                opened.append(self._open_engine())
                stack.callback(opened[0].close)
            return opened[0]

        return engine

    def _ended(self, cell: Cell, state: str, error: ProvisionError | None = None) -> None:
        with self._lock:
            self._running.pop(cell, None)
            self._counts[state] += 1
            self._columns.subtract(shared_by(cell.column))
            if error is not None:
                self._outcome.troubles.append((cell, error))
                self._progress(Note(f"trouble {cell}: {error.message}"))
                self._is_over = self._is_over or not self._options.keep_going
            self._report()

    def _report(self) -> None:
        """Report the progress of the run; the caller holds the lock."""
        running = tuple(map(str, self._running))
        self._progress(Tally(self._total, dict(self._counts), running))

    def _progress_of(self, cell: Cell) -> Progress:
        """Return the progress of one cell; it also stops the builds of a run that is to end."""

        def forward(event: Event) -> None:
            if self._stop.is_set():
                raise _StoppedError
            with self._lock:
                match event:
                    case Step(number, total, text):
                        self._progress(Output(f"{cell}: step {number}/{total}: {text}"))
                    case Note(text) | Output(text):
                        self._progress(Output(f"{cell}: {text}"))
                    case Transfer():
                        self._progress(event)
                    case Tally():
                        pass

        return forward
