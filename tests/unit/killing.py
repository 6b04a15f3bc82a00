"""Kills a run at a chosen operation on the file system.

A kill is played by an audit hook: from that operation on, every further one fails, so no cleanup of
the dying run gets anywhere, as after SIGKILL.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_CHANGES = ("os.", "shutil.")
_READ_ONLY = ("os.listdir", "os.scandir", "os.walk", "os.getxattr", "os.listxattr", "os.fwalk")


class KilledError(BaseException):
    """Stands for SIGKILL."""


class Killer:
    """Counts operations that change the file system, and lets none pass from a number on."""

    def __init__(self) -> None:
        self.counting = False
        self.count = 0
        self.after: int | None = None
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
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


def _is_change(event: str, arguments: tuple[object, ...]) -> bool:
    if event == "open":
        # Mode, or flags where a file is opened by descriptor.
        mode, flags = arguments[1], arguments[2]
        assert isinstance(flags, int)
        return (isinstance(mode, str) and mode[0] in "wax") or bool(flags & 0o103)
    return event.startswith(_CHANGES) and event not in _READ_ONLY


# An audit hook stays for ever: one is enough.
KILLER = Killer()
