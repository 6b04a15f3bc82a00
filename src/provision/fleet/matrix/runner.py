"""Runs a compatibility matrix: takes its cells one by one and writes the result of each.

An error of the machine (a full disk, an engine or archive that does not answer) ends the run,
because other cells would fail in the same way.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from provision.build.workspace import Settings
from provision.engine.docker_api import Engine
from provision.errors import ProvisionError
from provision.fleet.matrix.cell_builds import TOOLS, CellBuilder, disk_error, shared_by
from provision.fleet.matrix.cells import Cell, Column, Planned
from provision.fleet.matrix.results import BusyError, Result, Results
from provision.fleet.matrix.work import CellQueue, Crew, Outcome, RunOptions, SharedLayers
from provision.progress import Event, Note, Output, Progress, Step, Tally, Transfer, silent

# How often the run checks whether all threads have ended or Ctrl-C was pressed; and how long builds
# may take to stop before the process ends without waiting for them.
_POLL_S = 0.1
_GRACE_S = 10.0
_LOOK_AGAIN_S = 0.5


class _StoppedError(BaseException):
    """Unwinds a build whose run is to stop."""


class MatrixRun:
    """A run over cells.

    Args:
        open_engine: Connects to the engine; each thread has a connection of its own.
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
        self._crew = Crew()
        self._is_over = False
        self._queue = CellQueue(())
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
            self._results.read(one.cell)
        self._queue = CellQueue(planned)
        self._total = len(planned)
        for one in planned:
            self._columns.update(shared_by(one.cell.column))
        for column in self._columns:
            # Leftovers of a run that was killed.
            if self._layers.noted(column):
                self._layers.postpone(column)
        for _ in range(max(1, min(self._options.jobs, len(planned)))):
            self._crew.start(self._take_cells)
        self._crew.complete()
        try:
            while not self._crew.wait(_POLL_S):
                # The other jobs end after their cells.
                self._is_over = self._is_over or self._crew.failure is not None
        except BaseException:
            # The engine stops a build whose client disconnects, as it does when this process ends.
            self._stop.set()
            self._crew.wait(_GRACE_S)
            raise
        if self._crew.failure is not None:
            raise self._crew.failure
        self._outcome.left = self._queue.left()
        return self._outcome

    def _take_cells(self) -> None:
        """Take cells until the queue is empty."""
        with ExitStack() as stack, suppress(_StoppedError):
            engine = self._connecting(stack)
            while (planned := self._next()) is not None:
                try:
                    try:
                        with self._results.claimed(planned.cell):
                            self._do(planned, engine)
                    except BusyError:
                        self._postpone(planned)
                except ProvisionError as error:
                    self._ended(planned.cell, "trouble", error)
                except OSError as error:
                    self._ended(planned.cell, "trouble", disk_error(planned.cell, error))
                self._clear_columns()

    def _next(self) -> Planned | None:
        with self._lock:
            if self._is_over or self._stop.is_set() or (planned := self._queue.take()) is None:
                return None
            self._running[planned.cell] = None
            self._report()
        if self._queue.is_awaited(planned.cell):
            # The other matrix may need the time of a build.
            self._stop.wait(_LOOK_AGAIN_S)
        return planned

    def _postpone(self, planned: Planned) -> None:
        """Put back a cell that another matrix is building.

        Raises:
            InUseError: It has been building it for too long.
        """
        with self._lock:
            if self._queue.postpone(planned) == "first time":
                text = (
                    f"Another process is building {planned.cell}; this run looks at it again later"
                )
                self._progress(Note(text))
            del self._running[planned.cell]

    def _do(self, planned: Planned, engine: Callable[[], Engine]) -> None:
        """Get a result for a cell; the caller holds its lock."""
        cell = planned.cell
        begun = time.monotonic()
        decided = self._builder.decide(planned, engine, self._progress_of(cell))
        if decided.is_unchanged:
            self._outcome.unchanged.append(cell)
        elif decided.result is not None and planned.refusal is not None:
            self._results.write(decided.result)
        elif decided.result is not None:
            self._record(decided.result, begun)
        self._ended(cell, decided.state)
        if decided.result is not None and planned.refusal is None:
            cause = f": {decided.result.cause}" if decided.state == "failed" else ""
            with self._lock:
                self._progress(Note(f"{decided.state:<7} {cell}{cause}"))

    def _clear_columns(self) -> None:
        """Remove the layers of kernels whose cells are done, in parallel with the next build.

        Layers that another matrix still uses are removed later, or by that matrix.
        """
        with self._lock:
            done = self._layers.take_pending(lambda column: self._columns[column] == 0)
            # Layers of kernels come first: they are based on those of the tools.
            done.sort(key=lambda column: column.kernel == TOOLS)
        if done:
            self._crew.start(lambda: self._clear(done))

    def _clear(self, columns: Sequence[Column]) -> None:
        with self._clearing, ExitStack() as stack, suppress(ProvisionError, OSError):
            engine = self._connecting(stack)
            for column in columns:
                if not self._layers.clear(column, engine):
                    self._layers.postpone(column)

    def _connecting(self, stack: ExitStack) -> Callable[[], Engine]:
        """Return a function that connects to the engine once, until the stack is closed."""
        opened: list[Engine] = []

        def engine() -> Engine:
            if not opened:
                opened.append(self._open_engine())
                stack.callback(opened[0].close)
            return opened[0]

        return engine

    def _record(self, result: Result, begun: float) -> None:
        seconds = {**result.seconds, "total": round(time.monotonic() - begun, 3)}
        said = {"seconds": seconds, "forced": self._options.force}
        self._results.write(result.model_copy(update=said))
        self._outcome.built.append(result.cell)

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
