"""The parts of a matrix run: options, the queue of cells, shared layers, threads."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from provision.build.image import Built, remove_layers
from provision.engine.docker_api import Engine
from provision.errors import InUseError, ProvisionError
from provision.files import LONGEST_WAIT_S, lock, write_atomic
from provision.fleet.matrix.cells import Cell, Column, Planned
from provision.fleet.matrix.results import lock_path
from provision.pin import Pin
from provision.progress import Progress

Retry = Literal["failed", "all"]


class SharedLayers:
    """The layers that the cells of a kernel, or of a distro, have in common.

    Files record the layers, so that they are removed even if the run that made them was killed, or
    if two matrices made them at the same time.

    Args:
        folder: Of the matrix; need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._pending: dict[Column, None] = {}

    @contextmanager
    def using(self, column: Column) -> Iterator[None]:
        """Keep the layers of a kernel from being removed during a build."""
        with lock(lock_path(self._folder, "layers", str(column)), shared=True):
            yield

    def note(self, column: Column, layers: Sequence[str]) -> None:
        """Record layers until they are removed; the caller is using them."""
        self.postpone(column)
        if layers:
            text = json.dumps(list(layers))
            name = hashlib.sha256(text.encode()).hexdigest()[:32]
            write_atomic(self._notes(column) / f"{name}.json", f"{text}\n")

    def postpone(self, column: Column) -> None:
        """Mark the layers of a kernel for removal."""
        with self._lock:
            self._pending[column] = None

    def take_pending(self, is_done: Callable[[Column], bool]) -> list[Column]:
        """Return the kernels whose layers are to be removed now, and clear their marks."""
        with self._lock:
            done = [column for column in self._pending if is_done(column)]
            for column in done:
                del self._pending[column]
            return done

    def noted(self, column: Column) -> list[list[str]]:
        """Return the recorded layers, the oldest layer of each build first."""
        return [layers for _path, layers in self._noted(column)]

    def _noted(self, column: Column) -> list[tuple[Path, list[str]]]:
        found = []
        for path in sorted(self._notes(column).glob("[!.]*.json")):
            # A damaged note costs only disk space.
            with suppress(OSError, ValueError, TypeError):
                found.append((path, [str(layer) for layer in json.loads(path.read_bytes())]))
        return found

    def clear(self, column: Column, engine: Callable[[], Engine]) -> bool:
        """Remove the layers of a kernel unless a build uses them; return whether they are gone."""
        with ExitStack() as stack:
            try:
                path = lock_path(self._folder, "layers", str(column))
                stack.enter_context(lock(path, limit=0))
            except InUseError:
                return False
            for path, layers in self._noted(column):
                # Layers that another matrix is about to remove keep the layers below them.
                if remove_layers(engine(), layers):
                    path.unlink(missing_ok=True)
            if not self._noted(column):
                # This includes drafts of runs that were killed.
                shutil.rmtree(self._notes(column), ignore_errors=True)
            return True

    def _notes(self, column: Column) -> Path:
        return self._folder / "layers" / f"{column.distro.replace(':', '@')}@{column.kernel}"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run."""

    jobs: int = 1
    # Whether cells whose Pin has not changed are built again: those that failed, or all.
    retry: Retry | None = None
    keep_images: bool = False
    # Whether to go on after an error of the machine, such as a full disk.
    keep_going: bool = False
    # Network of the containers that download; None: what provision.toml says.
    network: str | None = None
    # Whether cells are built for kernels that a recipe does not name.
    force: bool = False
    # Takes the images of cells; None: only their results are kept.
    publisher: Publisher | None = None

    @property
    def compilers(self) -> int | None:
        """Number of compilers of each build; None: that of a single build."""
        processors = len(os.sched_getaffinity(0))
        return max(1, processors // self.jobs) if self.jobs > 1 else None


class Publisher(Protocol):
    """Takes the images of built cells, such as a registry."""

    def has(self, cell: Cell) -> bool:
        """Return whether the publisher has the image of a cell."""

    def publish(
        self, cell: Cell, engine: Engine, built: Built, pin: Pin, progress: Progress
    ) -> None:
        """Publish the image of a built cell."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a run."""

    # Cells that were built in this run, with or without success.
    built: list[Cell] = field(default_factory=list)
    unchanged: list[Cell] = field(default_factory=list)
    troubles: list[tuple[Cell, ProvisionError]] = field(default_factory=list)
    # Cells that the run did not reach.
    left: list[Cell] = field(default_factory=list)


class CellQueue:
    """The cells that a run has not decided yet; the caller holds a lock.

    Cells that another matrix is building come last, so that two runs don't wait for each other.
    """

    def __init__(self, planned: Iterable[Planned]) -> None:
        self._first = deque(planned)
        self._later: deque[Planned] = deque()
        self._since: dict[Cell, float] = {}

    def take(self) -> Planned | None:
        """Return the next cell; None: no cell is left."""
        queue = self._first or self._later
        return queue.popleft() if queue else None

    def is_awaited(self, cell: Cell) -> bool:
        """Return whether another matrix was building a cell at the last look."""
        return cell in self._since

    def postpone(self, planned: Planned) -> Literal["first time", "again"]:
        """Put back a cell that another matrix is building.

        Raises:
            InUseError: It has done so for longer than any build takes.
        """
        is_new = not self.is_awaited(planned.cell)
        now = time.monotonic()
        if now - self._since.setdefault(planned.cell, now) >= LONGEST_WAIT_S:
            raise InUseError(
                f"Another machine or process has held {planned.cell} for {LONGEST_WAIT_S:g} s.",
                resolution="Look for the process (ps -C provision), then run the command again.",
            )
        self._later.append(planned)
        return "first time" if is_new else "again"

    def left(self) -> list[Cell]:
        """Return the cells that were not taken."""
        return [one.cell for one in (*self._first, *self._later)]


class Crew:
    """Threads of a run, which end with the process if they do not end by themselves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        # The run itself counts too: the first thread may end before the next one starts.
        self._active = 1
        self.failure: Exception | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Run a function in a thread of its own."""
        with self._lock:
            self._active += 1
        threading.Thread(target=self._working, args=(work,), daemon=True).start()

    def complete(self) -> None:
        """Declare that the run itself starts no more threads; its threads may."""
        with self._lock:
            self._active -= 1
            if self._active == 0:
                self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Wait until every thread has ended, or for some seconds; return whether all have.

        It does not join them: Python 3.11 marks a thread as ended if the join is interrupted.
        """
        return self._ended.wait(seconds)

    def _working(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            # A defect: the run raises it where it is seen.
            self.failure = self.failure or error
        finally:
            self.complete()
