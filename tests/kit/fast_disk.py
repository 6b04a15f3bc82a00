"""A file system for what tests write, on which no program waits for the disk.

dockerd, dpkg and guests flush what they write. Nothing of a test has to survive the machine, and
tests with engines spent half of their time in these flushes. So temporary files lie in a file
system in a file: without a journal and barriers, a flush ends in the machine's page cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from kit.process import CommandFailedError, run

__all__ = ["mount_fast_disk", "unmount_fast_disk"]

# Short: podman takes 50 characters for the path of its run folder.
_PREFIX = "prov-"
_LARGEST = 48 << 30
_SMALLEST = 16 << 30
# discard: what tests remove leaves the file too, and the page cache with it. Without it, a run
# that needs 7 GB at a time has a file of 40, which the machine writes to its disk.
_OPTIONS = "loop,noatime,nobarrier,discard"


def mount_fast_disk() -> Path | None:
    """Mount one for this process and those that it starts.

    None: this machine has no loop devices, or too little space.

    A caller's own TMPDIR stays: so files of tests that failed can be kept and looked at.
    """
    if "TMPDIR" in os.environ or os.geteuid() != 0:
        return None
    _remove_left_over()
    folder = Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getpid()}"
    # No larger than what is free: a file that outgrows its disk ends in errors of the one in it.
    size = min(_LARGEST, shutil.disk_usage(folder.parent).free)
    if size < _SMALLEST:
        return None
    try:
        _mount(folder, size)
    except (CommandFailedError, OSError):
        unmount_fast_disk(folder)
        return None
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    return folder


def unmount_fast_disk(folder: Path) -> None:
    """Unmount and remove the one of this process."""
    os.environ.pop("TMPDIR", None)
    tempfile.tempdir = None
    _discard(folder)


def _discard(folder: Path) -> None:
    # A process that was left behind must not keep the folder: what it has open stays until its end.
    run(["umount", "--lazy", folder], check=False)
    _image(folder).unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        folder.rmdir()


def _mount(folder: Path, size: int) -> None:
    folder.mkdir()
    image = _image(folder)
    with image.open("wb") as stream:
        stream.truncate(size)
    run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-m", "0", image])
    run(["mount", "-o", _OPTIONS, image, folder])
    # As /tmp has it.
    folder.chmod(0o1777)


def _image(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.ext4")


def _remove_left_over() -> None:
    """Remove those of runs that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX)
        if owner.isdigit() and not Path("/proc", owner).exists():
            _discard(folder)
