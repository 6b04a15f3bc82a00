"""Builds the cells of a compatibility matrix, and remembers what became of each.

A result is a fact about its cell: a compiler's refusal, a missing header, a success. What is wrong
with the machine (a full disk, an engine or archive that does not answer) is no result; it ends the
run, because other cells would fail alike.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress

from provision.build.artifact_image import (
    KERNEL_STAGE,
    TOOLS_STAGE,
    Built,
    find,
    layers_of,
    phases,
    remove_layers,
)
from provision.build.diagnosis import BuildError
from provision.engine.docker_api import Engine
from provision.engine.stream import StepRecord
from provision.errors import ProvisionError
from provision.host.kernels import find_kernels
from provision.matrix.cell_failures import disk_error, failed_result, refuse_trouble
from provision.matrix.cells import Cell, Column, Planned
from provision.matrix.results import BusyError, Result, Results, result_of
from provision.matrix.work import CellQueue, Crew, How, Outcome, Publisher, SharedLayers
from provision.pipeline.image_builds import build_image
from provision.pipeline.package_pins import Resolved
from provision.pipeline.resolving import resolve_pin
from provision.pipeline.wanted import BuildSettings, Wanted
from provision.pipeline.workspace import Settings
from provision.progress import Event, Note, Output, Progress, Step, Tally, Transfer, silent

# How often the run looks whether all is done or Ctrl-C was pressed; and how long builds may take
# to notice that they are to stop, before they are left to end with the process.
_POLL_S = 0.1
_GRACE_S = 10.0
_LOOK_AGAIN_S = 0.5
# In the place of a kernel: the layers that all kernels of a distro begin with.
_TOOLS = "tools"


class _StoppedError(BaseException):
    """Unwinds a build whose run is to stop."""


class MatrixRun:
    """One run over cells.

    Args:
        settings: The host.
        results: Where results are kept.
        how: How to go about it.
        open_engine: Connects to the engine; each thread has a connection of its own.
        publisher: Where cells go; None: nowhere, only their results are wanted.
        progress: Gets what goes on; called by one thread at a time.
    """

    def __init__(
        self,
        settings: Settings,
        results: Results,
        how: How,
        open_engine: Callable[[], Engine],
        *,
        publisher: Publisher | None = None,
        progress: Progress = silent,
    ) -> None:
        self._settings = settings
        self._results = results
        self._how = how
        self._open_engine = open_engine
        self._publisher = publisher
        self._progress = progress
        self._begun = int(time.time())
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
        self._uncleared: dict[Column, None] = {}
        self._outcome = Outcome()
        self._own = _own_images(settings)

    def run(self, planned: Sequence[Planned]) -> Outcome:
        """Have a result of every cell.

        Raises:
            KeyboardInterrupt: Ctrl-C; what is done is kept, and no build goes on.
            OSError: Results can't be written.
            ProvisionError: A newer provision wrote a result; nothing was built.
        """
        for one in planned:
            self._results.read(one.cell)
        self._queue = CellQueue(planned)
        self._total = len(planned)
        for one in planned:
            self._columns.update(_shared_by(one.cell.column))
        # What a run that was killed left to be removed.
        noted = (column for column in self._columns if self._layers.noted(column))
        self._uncleared = dict.fromkeys(noted)
        for _ in range(max(1, min(self._how.jobs, len(planned)))):
            self._crew.start(self._take_cells)
        self._crew.complete()
        try:
            while not self._crew.wait(_POLL_S):
                pass
        except BaseException:
            # The engine ends a build whose client goes away, if only with this process.
            self._stop.set()
            self._crew.wait(_GRACE_S)
            raise
        self._outcome.left = self._queue.left()
        return self._outcome

    def _take_cells(self) -> None:
        """Take cells until there are none."""
        with ExitStack() as stack, suppress(_StoppedError):
            engine = self._connecting(stack)
            while (planned := self._next()) is not None:
                try:
                    try:
                        with self._results.claimed(planned.cell), self._claimed(planned):
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
            self._tell()
        if self._queue.is_awaited(planned.cell):
            # The other matrix may take as long as a build does.
            self._stop.wait(_LOOK_AGAIN_S)
        return planned

    def _postpone(self, planned: Planned) -> None:
        """Look at a cell later that another matrix builds.

        Raises:
            InUseError: It has been building it for too long.
        """
        with self._lock:
            if self._queue.postpone(planned) == "first time":
                text = f"Another builds {planned.cell} now; it is looked at again later"
                self._progress(Note(text))
            del self._running[planned.cell]

    def _claimed(self, planned: Planned) -> AbstractContextManager[None]:
        if self._publisher is None or planned.refusal is not None:
            return nullcontext()
        return self._publisher.claimed(planned.cell)

    def _do(self, planned: Planned, engine: Callable[[], Engine]) -> None:
        """Have a result of a cell; the caller holds its lock."""
        cell = planned.cell
        known = self._results.read(cell)
        if planned.refusal is not None:
            if known is not None and known.forced and known.state != "not-supported":
                # What was tried says more than what is known to be supported.
                self._outcome.unchanged.append(cell)
                self._ended(cell, known.state)
                return
            if known is None or (known.state, known.message) != ("not-supported", planned.refusal):
                said = result_of(
                    cell, "not-supported", message=planned.refusal, resolution=planned.resolution
                )
                self._results.write(said)
            self._ended(cell, "not-supported")
            return
        is_elsewhere = self._publisher is not None and self._publisher.has(cell)
        is_new = known is not None and known.finished > self._begun
        if is_elsewhere or (is_new and not self._is_lacking(known)):
            # Another matrix had it meanwhile.
            self._outcome.unchanged.append(cell)
            self._ended(cell, "built" if is_elsewhere or known is None else known.state)
            return
        begun = time.monotonic()
        # Without one, nothing is to be said of the cell.
        connected = engine()
        try:
            resolved = self._resolved(cell, connected)
        except ProvisionError as error:
            refuse_trouble(error)
            self._record(failed_result(cell, error, phase="resolve"), begun)
            return
        if known is not None and self._still_holds(known, resolved, connected):
            self._outcome.unchanged.append(cell)
            self._ended(cell, known.state)
            return
        with ExitStack() as stack:
            for column in _shared_by(cell.column):
                stack.enter_context(self._layers.using(column))
            result = self._build(cell, resolved, connected)
        self._record(result, begun)

    def _resolved(self, cell: Cell, engine: Engine) -> Resolved:
        row, column = cell.row, cell.column
        wanted = Wanted(
            row.driver,
            kernel=column.kernel,
            distro=column.distro,
            version=row.version,
            flavour=row.flavour,
            network=self._how.network,
            force=self._how.force,
        )
        return resolve_pin(self._settings, lambda: engine, wanted, progress=self._telling(cell))

    def _still_holds(self, known: Result, resolved: Resolved, engine: Engine) -> bool:
        """Whether a cell need not be built: the Pin is the same, and no option asks for it."""
        if known.digest != resolved.pin.digest or not known.is_final or self._is_lacking(known):
            return False
        if self._how.retry == "all" or (self._how.retry == "failed" and known.state == "failed"):
            return False
        needs_image = self._how.keep_images and known.state == "built"
        return not needs_image or find(engine, resolved.pin) is not None

    def _is_lacking(self, known: Result | None) -> bool:
        """Whether a cell was built and is not where it is to be: a result is no image."""
        return self._publisher is not None and known is not None and known.state == "built"

    def _build(self, cell: Cell, resolved: Resolved, engine: Engine) -> Result:
        """Build a cell, and leave in the engine what is to stay."""
        pin = resolved.pin
        how = BuildSettings(jobs=self._how.compilers, rebuild=self._how.retry == "all")
        try:
            built = build_image(self._settings, engine, resolved, how, progress=self._telling(cell))
        except ProvisionError as error:
            if isinstance(error, BuildError) and not self._how.keep_images:
                remove_layers(engine, layers_of(error.steps))
                self._note_layers(cell, error.steps)
            refuse_trouble(error)
            return failed_result(cell, error, phase="build", digest=pin.digest)
        if self._publisher is not None:
            self._publisher.publish(cell, engine, built, pin, self._telling(cell))
        kept = self._is_kept(cell, built)
        if not kept:
            self._note_layers(cell, built.steps)
            with suppress(ProvisionError):
                engine.remove(built.image_id, with_parents=True)
        return result_of(
            cell,
            "built",
            digest=pin.digest,
            size=built.size,
            image=built.image if kept else None,
            seconds={name: round(taken, 3) for name, taken in phases(built).items()},
        )

    def _is_kept(self, cell: Cell, built: Built) -> bool:
        """Whether an image stays: it was there before, is wanted, or this host may install it."""
        is_own = (cell.row.driver, cell.column.kernel) in self._own
        return self._how.keep_images or not built.built or is_own

    def _note_layers(self, cell: Cell, steps: Sequence[StepRecord]) -> None:
        shared = _shared_by(cell.column)
        for column, stage in zip(shared, (KERNEL_STAGE, TOOLS_STAGE), strict=True):
            self._layers.note(column, layers_of(steps, stage=stage))
        with self._lock:
            self._uncleared.update(dict.fromkeys(shared))

    def _clear_columns(self) -> None:
        """Remove the layers of kernels whose cells are done, beside the next build.

        Where another matrix still builds on them, they are left to it, or to a later moment.
        """
        with self._lock:
            done = [column for column in self._uncleared if self._columns[column] == 0]
            # Kernels' layers first: they grew out of those of the tools.
            done.sort(key=lambda column: column.kernel == _TOOLS)
            for column in done:
                del self._uncleared[column]
        if done:
            self._crew.start(lambda: self._clear(done))

    def _clear(self, columns: Sequence[Column]) -> None:
        with self._clearing, ExitStack() as stack, suppress(ProvisionError, OSError):
            engine = self._connecting(stack)
            for column in columns:
                if not self._layers.clear(column, engine):
                    with self._lock:
                        self._uncleared[column] = None

    def _connecting(self, stack: ExitStack) -> Callable[[], Engine]:
        """Return what connects to the engine, once, until the stack is closed."""
        opened: list[Engine] = []

        def engine() -> Engine:
            if not opened:
                opened.append(self._open_engine())
                stack.callback(opened[0].close)
            return opened[0]

        return engine

    def _record(self, result: Result, begun: float) -> None:
        seconds = {**result.seconds, "total": round(time.monotonic() - begun, 3)}
        result = result.model_copy(update={"seconds": seconds, "forced": self._how.force})
        self._results.write(result)
        self._outcome.built.append(result.cell)
        self._ended(result.cell, result.state)
        with self._lock:
            cause = f": {result.cause}" if result.state == "failed" else ""
            self._progress(Note(f"{result.state:<7} {result.cell}{cause}"))

    def _ended(self, cell: Cell, state: str, error: ProvisionError | None = None) -> None:
        with self._lock:
            self._running.pop(cell, None)
            self._counts[state] += 1
            self._columns.subtract(_shared_by(cell.column))
            if error is not None:
                self._outcome.troubles.append((cell, error))
                self._progress(Note(f"trouble {cell}: {error.message}"))
                self._is_over = self._is_over or not self._how.keep_going
            self._tell()

    def _tell(self) -> None:
        """Say how far it is; the caller holds the lock."""
        running = tuple(map(str, self._running))
        self._progress(Tally(self._total, dict(self._counts), running))

    def _telling(self, cell: Cell) -> Progress:
        """Return the progress of a cell's work, which is where a run that is to stop stops."""

        def telling(event: Event) -> None:
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

        return telling


def _shared_by(column: Column) -> tuple[Column, Column]:
    """Return what shares layers with a cell: its kernel's cells, and its distro's."""
    return column, Column(column.distro, _TOOLS)


def _own_images(settings: Settings) -> frozenset[tuple[str, str]]:
    """Return driver and kernel of images that this host may install: they are left to ``gc``."""
    kernels = find_kernels(settings.root).bootable
    return frozenset((driver, kernel) for driver in settings.config.drivers for kernel in kernels)
