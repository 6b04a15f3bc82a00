"""The layers that all drivers of a kernel begin with: kept while cells build on them, then removed.

Which they are is noted in files, so that they go even if the run that made them was killed, or if
two matrices made them at once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from provision.build.artifact_image import remove_layers
from provision.engine.docker_api import Engine
from provision.errors import InUseError
from provision.files import lock, write_atomic
from provision.matrix.cells import Column
from provision.matrix.results import lock_path


class SharedLayers:
    """The layers of kernels.

    Args:
        folder: Of the matrix; need not be there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def using(self, column: Column) -> Iterator[None]:
        """Build on the layers of a kernel: meanwhile they stay."""
        with lock(lock_path(self._folder, "layers", str(column)), shared=True):
            yield

    def note(self, column: Column, layers: Sequence[str]) -> None:
        """Remember layers until they are removed; the caller is using them."""
        if layers:
            text = json.dumps(list(layers))
            name = hashlib.sha256(text.encode()).hexdigest()[:32]
            write_atomic(self._notes(column) / f"{name}.json", f"{text}\n")

    def noted(self, column: Column) -> list[list[str]]:
        """Return what is remembered, the oldest layer of each build first."""
        found = []
        for path in sorted(self._notes(column).glob("[!.]*.json")):
            with suppress(OSError, ValueError):
                found.append([str(layer) for layer in json.loads(path.read_bytes())])
        return found

    def clear(self, column: Column, engine: Callable[[], Engine]) -> bool:
        """Remove the layers of a kernel, unless a build uses them; returns whether that was done.

        Raises:
            NotFoundError: No engine answers.
        """
        with ExitStack() as stack:
            try:
                path = lock_path(self._folder, "layers", str(column))
                stack.enter_context(lock(path, limit=0))
            except InUseError:
                return False
            for layers in self.noted(column):
                remove_layers(engine(), layers)
            shutil.rmtree(self._notes(column), ignore_errors=True)
            return True

    def _notes(self, column: Column) -> Path:
        return self._folder / "layers" / f"{column.distro.replace(':', '@')}@{column.kernel}"
