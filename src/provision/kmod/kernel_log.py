"""What the kernel says while a module is loaded: its reasons are nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from provision.rootfs import in_root

# Longer than any record: https://docs.kernel.org/admin-guide/abi-testing.html, /dev/kmsg.
_RECORD = 8192


class KernelLog:
    """The kernel's log from the moment at which this is entered.

    Args:
        root: Root of the host. Where its log can't be read, there are no lines.
        whole: Begin with the oldest line that the kernel still has instead.
    """

    def __init__(self, root: Path, *, whole: bool = False) -> None:
        self._path = in_root(root, "dev/kmsg")
        self._from = os.SEEK_SET if whole else os.SEEK_END
        self._handle: int | None = None

    def __enter__(self) -> Self:
        try:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._handle, 0, self._from)
        except OSError:
            # Containers and unprivileged users have none; the reasons are then less exact.
            self.__exit__(None, None, None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @property
    def is_readable(self) -> bool:
        """Whether there is a log to read."""
        return self._handle is not None

    def lines(self) -> list[str]:
        """Return what has been logged since, one message an item, without its head."""
        records = b"".join(self._records()).decode(errors="replace").splitlines()
        # Continuation lines begin with a blank and hold fields of the device, not text.
        return [r.partition(";")[2] for r in records if ";" in r and not r.startswith(" ")]

    def _records(self) -> list[bytes]:
        found: list[bytes] = []
        while self._handle is not None:
            try:
                record = os.read(self._handle, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # Overwritten before it was read; the next read goes on after the gap.
                continue
            if not record:
                break
            found.append(record)
        return found
