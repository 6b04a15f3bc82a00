"""Delays a shutdown while the next kernel's modules are built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.rootfs import in_root
from provision.run import beside, find_program

# logind answers where systemd has started it: https://www.freedesktop.org/wiki/Software/systemd/inhibit/
_LOGIND = Path("run/systemd/seats")


@contextmanager
def shutdown_delayed(root: Path, why: str) -> Iterator[None]:
    """Let a shutdown wait until the block ends, for as long as logind's configuration allows.

    That is ``InhibitDelayMaxSec`` (logind.conf(5)), 5 seconds if nobody set it: a build can delay
    a shutdown, never prevent it. Without systemd nothing is delayed.

    Args:
        root: Root of the running host.
        why: Shown to whoever asks what delays the shutdown.
    """
    if not in_root(root, _LOGIND).is_dir() or find_program("systemd-inhibit") is None:
        yield
        return
    # cat ends when this process does, and with it the inhibitor.
    what = ("--what=shutdown", "--mode=delay", "--who=provision", f"--why={why}")
    with beside(["systemd-inhibit", *what, "cat"], why="delay a shutdown"):
        yield
