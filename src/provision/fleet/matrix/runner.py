"""Runs a compatibility matrix: takes its cells one by one, builds them, and writes their results.

A result is a fact about its cell: a compiler's refusal, a missing header, a success. An error of
the machine (a full disk, an engine or archive that does not answer) ends the run instead, because
other cells would fail in the same way.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Literal

from provision.build.diagnosis import BuildError, kind_of
from provision.build.image import (
    TOOLCHAIN_KERNEL_LABEL,
    build_image,
    find_built,
    layers_of,
    remove_layers,
    remove_toolchain,
)
from provision.build.provenance import built_here
from provision.build.request import BuildSettings, DriverRequest
from provision.build.resolve import Resolved, resolve_pin
from provision.build.workspace import EngineConnection, Settings
from provision.engine.docker_api import EngineError
from provision.errors import ExitCode, InUseError, ProvisionError, redact
from provision.fetch import UnreachableError
from provision.files import LONGEST_WAIT_S
from provision.fleet.matrix.cells import Cell, Column, Planned
from provision.fleet.matrix.results import (
    BusyError,
    Outcome,
    Result,
    Results,
    result_of,
)
from provision.fleet.prebuild import FleetRegistry
from provision.host.kernels import find_kernels
from provision.progress import (
    Event,
    Listener,
    Note,
    Output,
    Step,
    Tally,
    Transfer,
    current_listener,
    heard_by,
    report,
)

# How long builds may take to stop before the process ends without waiting for them.
_GRACE_S = 10.0
_LOOK_AGAIN_S = 0.5
_FULL = "no space left on device"
_LONGEST_TEXT = 16_000
_LONGEST_LINE = 400
_LINES_BEFORE, _LINES_AFTER, _LAST_LINES = 5, 25, 40


Retry = Literal["failed", "all"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run."""

    jobs: int = 1
    # Whether cells whose Pin has not changed are built again: those that failed, or all.
    retry: Retry | None = None
    keep_images: bool = False
    # Whether to go on after an error of the machine, such as a full disk.
    keep_going: bool = False
    # Whether cells are built for kernels that a recipe does not name.
    force: bool = False
    # Takes the images of cells; None: only their results are kept.
    publisher: FleetRegistry | None = None

    @property
    def compilers(self) -> int | None:
        """Number of compilers of each build; None: that of a single build."""
        processors = len(os.sched_getaffinity(0))
        return max(1, processors // self.jobs) if self.jobs > 1 else None


class _StoppedError(BaseException):
    """Unwinds a build whose run is to stop."""


class MatrixRun:
    """A run over cells. Each of its threads has a connection of its own to the engine."""

    def __init__(self, settings: Settings, results: Results, options: RunOptions) -> None:
        self._settings = settings
        self._results = results
        self._options = options
        self._lock = threading.Lock()
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
        # Whose toolchains are to be removed when their last cell is done.
        self._pending: set[Column] = set()
        self._begun = int(time.time())
        # Driver and kernel of images that this host may install; ``gc`` removes these.
        self._kernels = frozenset(find_kernels(settings.root).bootable)
        drivers = settings.config.drivers
        self._own = {(driver, kernel) for driver in drivers for kernel in self._kernels}
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
        self._columns.update(one.cell.column for one in planned)
        self._active = max(1, min(self._options.jobs, len(planned)))
        try:
            for _ in range(self._active):
                # They end with the process if they do not end by themselves.
                threading.Thread(target=copy_context().run, args=(self._work,), daemon=True).start()
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
        connection = EngineConnection(self._settings.connection.connect)
        try:
            with closing(connection), suppress(_StoppedError):
                self._take_cells(replace(self._settings, connection=connection))
        except Exception as error:
            # The run raises it where it is seen; the other threads end after their cells.
            self._defect = self._defect or error
            self._is_over = True
        finally:
            with self._lock:
                self._active -= 1
                if self._active == 0:
                    self._finished.set()

    def _take_cells(self, settings: Settings) -> None:
        while (planned := self._next()) is not None:
            try:
                with self._results.claimed(planned.cell):
                    self._do(planned, settings)
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
            self._remove_toolchains(settings)

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
                report(Note(text))
            self._postponed.append(planned)
            del self._running[cell]

    def _remove_toolchains(self, settings: Settings) -> None:
        """Remove the toolchains of kernels whose cells are done, and that can't boot here.

        One that another process uses stays; ``gc`` removes it.
        """
        with self._lock:
            done = {column for column in self._pending if self._columns[column] == 0}
            self._pending -= done
        for kernel in {column.kernel for column in done} - self._kernels:
            label, engine = f"{TOOLCHAIN_KERNEL_LABEL}={kernel}", settings.engine()
            for image in built_here(engine, label, settings.state):
                with suppress(ProvisionError):
                    remove_toolchain(engine, image, settings.state)

    def _do(self, planned: Planned, settings: Settings) -> None:
        """Get a result for a cell; the caller holds its lock."""
        cell = planned.cell
        begun = time.monotonic()
        with heard_by(self._listener_of(cell)):
            state, result = self._decide(planned, settings)
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
                report(Note(f"{state:<7} {cell}{cause}"))

    def _decide(self, planned: Planned, settings: Settings) -> tuple[str, Result | None]:
        """Decide about a cell, and build it if necessary; the caller holds its lock.

        Returns:
            Its state, and its result if that is new; the result is not written yet.
        """
        cell = planned.cell
        known = self._results.read(cell)
        if planned.refusal is not None:
            return _refused(planned, known)
        publisher = self._options.publisher
        if publisher is not None and publisher.has(cell):
            return "built", None
        if known is not None and known.finished > self._begun and not self._is_lacking(known):
            # Another matrix has built it meanwhile.
            return known.state, None
        # Without an engine, nothing can be decided.
        settings.engine()
        try:
            resolved = resolve_cell(settings, cell)
        except ProvisionError as error:
            refuse_trouble(error)
            result = failed_result(cell, error, phase="resolve")
            return result.state, result
        if known is not None and self._still_holds(known, resolved, settings):
            return known.state, None
        result = self._build(cell, resolved, settings)
        return result.state, result

    def _still_holds(self, known: Result, resolved: Resolved, settings: Settings) -> bool:
        """Whether a known result still holds: the same Pin, and no option for a build."""
        if known.digest != resolved.pin.digest or not known.is_final or self._is_lacking(known):
            return False
        retry = self._options.retry
        if retry == "all" or (retry == "failed" and known.state == "failed"):
            return False
        needs_image = self._options.keep_images and known.state == "built"
        if not needs_image:
            return True
        return find_built(settings.engine(), resolved.pin, settings.state) is not None

    def _is_lacking(self, known: Result) -> bool:
        """Whether a cell was built, but its image is not at the publisher."""
        return self._options.publisher is not None and known.state == "built"

    def _build(self, cell: Cell, resolved: Resolved, settings: Settings) -> Result:
        """Build a cell, and keep or remove its image and layers."""
        options, pin, engine = self._options, resolved.pin, settings.engine()
        how = BuildSettings(jobs=options.compilers, rebuild=options.retry == "all")
        if not options.keep_images:
            with self._lock:
                self._pending.add(cell.column)
        try:
            built = build_image(settings, resolved, how)
        except ProvisionError as error:
            if isinstance(error, BuildError) and not options.keep_images:
                remove_layers(engine, layers_of(error.steps))
            refuse_trouble(error)
            return failed_result(cell, error, phase="build", digest=pin.digest)
        if options.publisher is not None:
            options.publisher.publish(cell, engine, built, pin)
        # An older image stays, and one that this host may install.
        is_own = (cell.row.driver, cell.column.kernel) in self._own
        kept = options.keep_images or not built.built or is_own
        if not kept:
            with suppress(ProvisionError):
                engine.remove(built.image_id, with_parents=True)
        return result_of(
            cell,
            "built",
            digest=pin.digest,
            size=built.size,
            image=built.image if kept else None,
            seconds={name: round(taken, 3) for name, taken in built.phases().items()},
        )

    def _ended(self, cell: Cell, state: str, error: ProvisionError | None = None) -> None:
        with self._lock:
            self._running.pop(cell, None)
            self._counts[state] += 1
            self._columns.subtract([cell.column])
            if error is not None:
                self._outcome.troubles.append((cell, error))
                report(Note(f"trouble {cell}: {error.message}"))
                self._is_over = self._is_over or not self._options.keep_going
            self._report()

    def _report(self) -> None:
        """Report the progress of the run; the caller holds the lock."""
        running = tuple(map(str, self._running))
        report(Tally(self._total, dict(self._counts), running))

    def _listener_of(self, cell: Cell) -> Listener:
        """Return the listener to a cell's build; it also stops the builds of a run that ends."""
        hear = current_listener()

        def forward(event: Event) -> None:
            if self._stop.is_set():
                raise _StoppedError
            with self._lock:
                match event:
                    case Step(number, total, text):
                        hear(Output(f"{cell}: step {number}/{total}: {text}"))
                    case Note(text) | Output(text):
                        hear(Output(f"{cell}: {text}"))
                    case Transfer():
                        hear(event)
                    case Tally():
                        pass

        return forward


def resolve_cell(settings: Settings, cell: Cell) -> Resolved:
    """Return the Pin of a cell, with what its build needs here.

    What a recipe knows of it, the plan of the cells has decided about.
    """
    return resolve_pin(settings, DriverRequest(**cell.members(), force=True))


def _refused(planned: Planned, known: Result | None) -> tuple[str, Result | None]:
    """Return the decision about a cell that the recipe does not support."""
    if known is not None and known.forced and known.state != "not-supported":
        # A forced build says more than the recipe.
        return known.state, None
    if known is not None and (known.state, known.message) == ("not-supported", planned.refusal):
        return known.state, None
    return "not-supported", result_of(
        planned.cell, "not-supported", message=planned.refusal, resolution=planned.resolution
    )


def refuse_trouble(error: ProvisionError) -> None:
    """Raise an error that says nothing about the cell.

    Raises:
        ProvisionError: The error, if other cells would fail in the same way.
    """
    is_outside = isinstance(error, BuildError) and error.is_outside
    is_full = _FULL in f"{error.message}\n{error.details or ''}".lower()
    alike = (UnreachableError, EngineError, InUseError)
    if is_outside or is_full or isinstance(error, alike):
        raise error


def failed_result(
    cell: Cell,
    error: ProvisionError,
    *,
    phase: Literal["resolve", "build"],
    digest: str | None = None,
) -> Result:
    """Return the result of a cell that ended with an error.

    A driver that excludes the kernel itself, as a dkms.conf can, is unsupported; it has not failed.
    """
    said: dict[str, Any] = {
        "digest": digest,
        "message": error.message[:_LONGEST_TEXT],
        "resolution": error.resolution,
    }
    if isinstance(error, BuildError) and error.exit_code is ExitCode.NOT_FOUND:
        return result_of(cell, "not-supported", **said)
    return result_of(
        cell,
        "failed",
        **said,
        reason=kind_of(error),
        phase=phase,
        details=error.details[:_LONGEST_TEXT] if error.details else None,
        **(_of_build(error) if isinstance(error, BuildError) else {}),
    )


def _of_build(error: BuildError) -> dict[str, Any]:
    """Return the further members of a result for a build that failed."""
    lines = list(error.step.lines) if error.step else []
    said: dict[str, Any] = {
        "instruction": error.step.instruction if error.step else None,
        "log": str(error.log) if error.log else None,
        "errors": len(error.source_errors),
        "excerpt": tuple(redact(line[:_LONGEST_LINE]) for line in _excerpt(error, lines)),
    }
    if error.source_errors:
        first = error.source_errors[0]
        said["first_error"] = replace(
            first,
            text=redact(first.text[:_LONGEST_LINE]),
            excerpt=tuple(line[:_LONGEST_LINE] for line in first.excerpt),
        )
    return said


def _excerpt(error: BuildError, lines: Sequence[str]) -> Sequence[str]:
    """Return the part of a step's output that shows why it failed."""
    if not error.source_errors:
        return lines[-_LAST_LINES:]
    first = error.source_errors[0]
    place = first.file if first.line is None else f"{first.file}:{first.line}:"
    at = next((number for number, line in enumerate(lines) if place in line), None)
    if at is None:
        return lines[-_LAST_LINES:]
    return lines[max(0, at - _LINES_BEFORE) : at + _LINES_AFTER]
