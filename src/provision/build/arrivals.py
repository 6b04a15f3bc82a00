"""Packages that leave a solving container while their signatures are still checked in there.

What arrives is a draft of the package store until the closure names its checksum, which it does
only after the checks.
"""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

from provision.build.package_store import PackageStore
from provision.engine.containers import Container
from provision.errors import ProvisionError


class Arrivals:
    """The drafts of one solve; used as a context, which removes those that nothing took.

    The context has to be the outer one of the container's: a stream ends with its container.

    Args:
        store: Takes the files.
    """

    def __init__(self, store: PackageStore) -> None:
        self._store = store
        self._drafts: dict[str, Path] = {}
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.wait()
        for draft in self._drafts.values():
            draft.unlink(missing_ok=True)

    def begin(self, container: Container, folder: str) -> None:
        """Have the files of a folder in a container come, while the caller goes on.

        Args:
            container: The container, in which nothing may change the folder until ``wait``.
            folder: Absolute path in there.
        """
        self.wait()
        self._thread = Thread(target=self._receive, args=(container, folder), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing comes any more."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take(self, sha256: str) -> bool:
        """Put a file into the store; returns whether it has come.

        Raises:
            OSError: The store can't be written.
        """
        self.wait()
        draft = self._drafts.pop(sha256, None)
        if draft is None:
            return False
        draft.replace(self._store.path(sha256))
        return True

    def _receive(self, container: Container, folder: str) -> None:
        try:
            for _name, content in container.files(folder):
                sha256, draft = self._store.receive(content)
                # Two packages may have the same content.
                if sha256 in self._drafts:
                    draft.unlink()
                self._drafts[sha256] = self._drafts.get(sha256, draft)
        except (ProvisionError, OSError):
            # What has not come is asked for once more after the checks, and fails there.
            return
