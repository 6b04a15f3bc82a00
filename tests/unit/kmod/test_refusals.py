"""The kernel's log, from which the reason of a refusal is read."""

from __future__ import annotations

import os
from pathlib import Path

from provision.kmod.load import KernelLog


def test_the_log_is_read_from_the_moment_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "dev/kmsg"
    path.parent.mkdir()
    path.write_text("6,1,1,-;before\n")
    with KernelLog(tmp_path) as log:
        with path.open("a") as stream:
            stream.write("3,2,5,-;demo: first; with more\n SUBSYSTEM=pci\n DEVICE=+pci\n")
            stream.write("4,3,6,-;second\n")
        assert log.lines() == ["demo: first; with more", "second"]


def test_a_log_that_would_block_ends(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    writer = os.open(tmp_path / "dev/kmsg", os.O_RDWR)
    try:
        with KernelLog(tmp_path) as log:
            assert log.lines() == []
    finally:
        os.close(writer)
