"""Kills a run at a chosen operation on the file system, or has what touches a path raise an error.

Both are played by an audit hook. From a kill on, every further operation fails, so no cleanup of
the dying run gets anywhere, as after SIGKILL.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

_CHANGES = ("os.", "shutil.")
_PATHS = ("open", "os.listdir", "os.scandir")
_READ_ONLY = ("os.listdir", "os.scandir", "os.walk", "os.getxattr", "os.listxattr", "os.fwalk")


class KilledError(BaseException):
    """Stands for SIGKILL."""


class Killer:
    """Counts operations that change the file system, and lets none pass from a number on."""

    def __init__(self) -> None:
        self.counting = False
        self.count = 0
        self.after: int | None = None
        self._raised: tuple[str, BaseException] | None = None
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._raised and event in _PATHS and arguments:
            pattern, error = self._raised
            if PurePath(str(arguments[0])).match(pattern):
                if isinstance(error, KeyboardInterrupt):
                    # A person interrupts once.
                    self._raised = None
                raise error
        if not self.counting or not _is_change(event, arguments):
            return
        self.count += 1
        if self.after is not None and self.count > self.after:
            raise KilledError

    @contextmanager
    def at(self, number: int | None) -> Iterator[None]:
        """Kill at an operation; None: only count."""
        self.count, self.after, self.counting = 0, number, True
        try:
            yield
        except KilledError:
            pass
        finally:
            self.counting = False

    @contextmanager
    def raising(self, error: BaseException, pattern: str) -> Iterator[None]:
        """Raise an error in whatever opens or lists a path that ends like this."""
        self._raised = pattern, error
        try:
            yield
        finally:
            self._raised = None


def _is_change(event: str, arguments: tuple[object, ...]) -> bool:
    if event == "open":
        # Mode, or flags where a file is opened by descriptor.
        mode, flags = arguments[1], arguments[2]
        assert isinstance(flags, int)
        return (isinstance(mode, str) and mode[0] in "wax") or bool(flags & 0o103)
    return event.startswith(_CHANGES) and event not in _READ_ONLY


# An audit hook stays for ever: one is enough.
KILLER = Killer()
