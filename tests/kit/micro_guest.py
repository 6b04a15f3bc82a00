"""Guests of `provision.kmod.guest`: a kernel, what a test puts in, and one script of steps."""

from __future__ import annotations

import platform
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kit.cache import cache_dir
from kit.engine import Engine
from kit.guest.qemu import accelerator
from kit.probe import installed_program
from kit.process import run
from provision.build.workspace import load_settings
from provision.kmod.guest import Initramfs, Ran, run_guest
from provision.kmod.guest_packages import BootFiles, boot_files
from provision.pin import Pin

_STEP = re.compile(r"@@ (?P<name>.*)")
_STATUS = re.compile(r"@= (?P<status>\d+)")
# Defines `step NAME COMMAND...`, which says what the command printed and its exit status.
_STEPS = """\
step() {
    echo "@@ $1"
    shift
    "$@" 2>&1
    echo "@= $?"
}
"""
_FIND_PROGRAM = 'PATH=/usr/local/bin:/usr/sbin:/usr/bin; realpath "$(command -v "$1")"'
_LIMIT_S = 240


class Step(NamedTuple):
    """A finished step: its exit status and what it printed."""

    status: int
    text: str


@contextmanager
def kernel_of(engine: Engine, pin: Pin, modules: Sequence[str]) -> Iterator[BootFiles]:
    """What boots a Pin's kernel, with modules of its own, as `verify --boot` gets it."""
    settings = load_settings()
    own = settings.config.engine.model_copy(update={"host": engine.host, "network": "host"})
    config = settings.config.model_copy(update={"engine": own})
    # With what the command has stored when a test called it.
    settings = replace(settings, config=config, state=cache_dir() / "provision")
    with (
        closing(settings.connection),
        boot_files(settings, pin, pin.kernel.release, modules) as files,
    ):
        yield files


def add_programs(initramfs: Initramfs, *names: str, root: Path = Path("/")) -> None:
    """Add programs of this machine, or of the Debian in another folder, with their libraries."""
    enter = installed_program("chroot")
    for name in names:
        # Links lead to places in that Debian.
        found = run([enter, root, "sh", "-c", _FIND_PROGRAM, "sh", name]).stdout.strip()
        initramfs.add(f"usr/bin/{name}", root / found[1:], mode=0o755)
        # It fails for a program that needs none.
        listed = run([enter, root, "ldd", found], check=False).stdout
        for library in re.findall(r"/[^\s:)]+\.so[^\s:)]*", listed):
            place = f"usr{library}" if library.startswith("/lib") else library[1:]
            initramfs.add(place, (root / place).resolve(), mode=0o755)


def run_steps(
    files: BootFiles,
    fill: Callable[[Initramfs], None],
    script: str,
    *,
    machine: str = "x86_64",
) -> tuple[dict[str, Step], Ran]:
    """Boot, and run a script that calls `step NAME COMMAND...`; each step's result by its name."""
    with ExitStack() as opened:
        kernel, stream = (opened.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        files.write_kernel(kernel)
        initramfs = Initramfs(stream)
        files.add_to(initramfs)
        fill(initramfs)
        initramfs.close(_STEPS + script)
        own = accelerator() if machine == platform.machine() else "tcg"
        ran = run_guest(machine, kernel, stream, limit=_LIMIT_S, accelerators=(own,))
    return dict(_steps(ran.lines)), ran


def _steps(lines: Sequence[str]) -> Iterator[tuple[str, Step]]:
    name = ""
    text: list[str] = []
    for line in lines:
        if found := _STEP.fullmatch(line):
            name, text = found["name"], []
        elif found := _STATUS.fullmatch(line):
            yield name, Step(int(found["status"]), "\n".join(text))
        else:
            text.append(line)
