"""Step 6: what containers get with the flag and without it, in Docker and in podman."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from demo.screen import Screen
    from kit.process import Completed

__all__ = ["PROGRAMS", "Door", "Program", "Received", "show"]

_CACHE = "/etc/ld.so.cache"
# Characters of an echoed command line: a list of some dozen files isn't for the eye.
_SHOWN = 240


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a driver's user space, and what it says on a machine without the hardware."""

    argv: tuple[str, ...]
    says: str
    library: str
    folder: str
    device: Path

    @property
    def library_path(self) -> str:
        """Where the container has the library that the program looks for."""
        return f"{self.folder}/{self.library}"


# Drivers whose user space can be shown at work; of any other the demo shows the files alone.
PROGRAMS = {
    "nvidia": Program(
        argv=("nvidia-smi",),
        says="couldn't communicate with the NVIDIA driver",
        library="libnvidia-ml.so.1",
        folder="/usr/lib64/nvidia",
        device=Path("/dev/nvidiactl"),
    )
}


@dataclass(frozen=True, slots=True)
class Door:
    """One engine's `run`: how it is started, and how that is shown."""

    name: str
    argv: tuple[str | Path, ...]
    env: dict[str, str]

    def run(self, screen: Screen, flags: Sequence[str], image: str, *words: str) -> Completed:
        """Start a container with the runtime `oci-decorator`."""
        rest = ["run", "--rm", "--runtime", "oci-decorator", *flags, image, *words]
        # podman takes --runtime before its subcommand.
        if self.name == "podman":
            rest = ["--runtime", "oci-decorator", "run", "--rm", *flags, image, *words]
        shown = shlex.join([self.name, *rest])
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}…"
        return screen.run([*self.argv, *rest], env=self.env, shown=shown, lines=12)


@dataclass(frozen=True, slots=True)
class Received:
    """What a container got: paths of the vendor config, by their kind."""

    binaries: list[str]
    libraries: list[str]
    devices: list[str]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Received:
        """Everything that any feature of a vendor config lists."""

        def listed(kind: str) -> list[str]:
            features = config["inventory"].values()
            return sorted({path for feature in features for path in feature.get(kind, [])})

        return cls(listed("binaries"), listed("libraries"), listed("devices"))


def show(screen: Screen, door: Door, image: str, flag: str, driver: str, got: Received) -> None:
    """Start containers through one door, and check what they have.

    Raises:
        DemoError: something that has to be there isn't, or something is that mustn't.
    """
    _files(screen, door, image, flag, got)
    program = PROGRAMS.get(driver)
    if program is not None:
        _program(screen, door, image, flag, program)


def _files(screen: Screen, door: Door, image: str, flag: str, got: Received) -> None:
    paths = [*got.binaries, *got.libraries]
    if not paths:
        done = door.run(screen, ["-e", f"{flag}=all"], image, "true")
        screen.check(done.returncode == 0, "a container starts; this driver has no files", done)
        return
    script = 'n=0; for f in "$@"; do [ -e "$f" ] && n=$((n+1)); done; echo "$n of $# files"'
    command = ("sh", "-c", script, "sh", *paths)
    without = door.run(screen, [], image, *command).stdout.strip()
    with_flag = door.run(screen, ["-e", f"{flag}=all"], image, *command).stdout.strip()
    screen.check(without == f"0 of {len(paths)} files", f"without {flag} nothing is added", without)
    expected = f"{len(paths)} of {len(paths)} files"
    screen.check(with_flag == expected, f"with {flag}=all the container has {expected}", with_flag)


def _program(screen: Screen, door: Door, image: str, flag: str, program: Program) -> None:
    name = program.argv[0]
    flags = ["-e", f"{flag}=all"]
    plain = door.run(screen, [], image, *program.argv)
    missing = plain.returncode == 127 and "not found" in plain.output
    screen.check(missing, f"without {flag}, {name} is not found", plain.output)

    real = door.run(screen, flags, image, *program.argv)
    if program.device.exists():
        screen.check(real.returncode != 127, f"with {flag}=all, {name} runs", real.output)
    else:
        message = f"with {flag}=all, the real {name} runs, and says that it {program.says}"
        screen.check(program.says in real.output, message, real.output)

    # The program may look in its folder by itself: only the loader's own words are a proof.
    debug = door.run(screen, [*flags, "-e", "LD_DEBUG=libs"], image, *program.argv)
    found = rf"search cache={_CACHE}\s+\d+:\s+trying file={re.escape(program.library_path)}\b"
    screen.check(
        re.search(found, debug.output),
        f"the loader finds {program.library} through {_CACHE}",
        _about(program.library, debug.output),
    )
    listing = door.run(screen, flags, image, "ldconfig", "-p")
    line = rf"{re.escape(program.library)} .*=> {re.escape(program.library_path)}\b"
    message = f"ldconfig -p lists {program.library_path}"
    screen.check(re.search(line, listing.output), message, _about(program.library, listing.output))


def _about(library: str, output: str) -> str:
    lines = [line for line in output.splitlines() if library in line or "search " in line]
    return "\n".join(lines) or "(nothing about it)"
