"""The layers that builds of several cells begin with, and their removal after the last one."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from provision.build.image import remove_layers
from provision.engine.docker_api import Engine
from provision.errors import InUseError
from provision.files import lock, write_atomic
from provision.fleet.matrix.cells import Column
from provision.fleet.matrix.results import lock_path


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
