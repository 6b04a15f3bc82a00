"""Step 6: what containers get with the flag and without it, in Docker and in podman."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from demo.screen import Screen
from kit.process import Completed

_CACHE = "/etc/ld.so.cache"
# Characters of an echoed command line: a list of some dozen files isn't for the eye.
_SHOWN = 240


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a driver's user space, and what it says on a machine without the hardware."""

    # How it is started.
    argv: tuple[str, ...]
    # How it is started where no hardware is, to say which version it is.
    about: tuple[str, ...]
    # What it then says first.
    says: str
    # What the machine needs to see it at its work.
    hardware: str
    # The library that it opens.
    library: str
    # Where the container has that library.
    folder: str
    # Device nodes of a host with one such device, by name below /dev: major and minor.
    nodes: dict[str, tuple[int, int]]

    @property
    def library_path(self) -> str:
        """Where the container has the library that the program looks for."""
        return f"{self.folder}/{self.library}"


# Drivers whose user space can be shown at work; of any other the demo shows only the files.
PROGRAMS = {
    "nvidia": Program(
        argv=("nvidia-smi",),
        about=("nvidia-smi", "-h"),
        says="NVIDIA System Management Interface -- v",
        hardware="an NVIDIA GPU",
        library="libnvidia-ml.so.1",
        folder="/usr/lib64/nvidia",
        # The numbers are fixed: https://docs.kernel.org/admin-guide/devices.html
        nodes={"nvidiactl": (195, 255), "nvidia0": (195, 0)},
    )
}


@dataclass(frozen=True, slots=True)
class Client:
    """One engine's `run`: how it is started, and how that is shown."""

    name: str
    argv: tuple[str | Path, ...]
    env: dict[str, str]

    def run(
        self,
        screen: Screen,
        flags: Sequence[str],
        image: str,
        *words: str,
        excerpt: Callable[[str], str] = str,
    ) -> Completed:
        """Start a container with the runtime `oci-decorator`."""
        rest = ["run", "--rm", "--runtime", "oci-decorator", *flags, image, *words]
        # podman takes --runtime before its subcommand.
        if self.name == "podman":
            rest = ["--runtime", "oci-decorator", "run", "--rm", *flags, image, *words]
        shown = shlex.join([self.name, *rest])
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}…"
        return screen.run([*self.argv, *rest], env=self.env, shown=shown, lines=12, excerpt=excerpt)


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


def make_nodes(screen: Screen, driver: str, root: Path) -> None:
    """Give the host below `root` the device nodes of a machine that has the driver's hardware.

    Without them nvidia-smi would make nodes of its own, which an engine's device rules then deny,
    and it would complain of that and not of the driver.
    """
    program = PROGRAMS.get(driver)
    if program is None:
        return
    (root / "dev").mkdir(exist_ok=True)
    for name, numbers in program.nodes.items():
        real = Path("/dev", name)
        device = real.stat().st_rdev if real.exists() else os.makedev(*numbers)
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, device)
        kind = "this machine's own" if real.exists() else "with no driver behind it"
        screen.say(f"device node dev/{name}, {kind}: {os.major(device)}:{os.minor(device)}")


def show(screen: Screen, client: Client, image: str, flag: str, driver: str, got: Received) -> None:
    """Start containers through one client, and check what they have.

    Raises:
        DemoError: something that has to be there isn't, or something is that mustn't.
    """
    _files(screen, client, image, flag, got)
    program = PROGRAMS.get(driver)
    if program is not None:
        _program(screen, client, image, flag, program)


def _files(screen: Screen, client: Client, image: str, flag: str, got: Received) -> None:
    paths = [*got.binaries, *got.libraries]
    if not paths:
        done = client.run(screen, ["-e", f"{flag}=all"], image, "true")
        screen.check(done.returncode == 0, "a container starts; this driver has no files", done)
        return
    script = 'n=0; for f in "$@"; do [ -e "$f" ] && n=$((n+1)); done; echo "$n of $# files"'
    command = ("sh", "-c", script, "sh", *paths)
    without = client.run(screen, [], image, *command).stdout.strip()
    with_flag = client.run(screen, ["-e", f"{flag}=all"], image, *command).stdout.strip()
    screen.check(without == f"0 of {len(paths)} files", f"without {flag} nothing is added", without)
    expected = f"{len(paths)} of {len(paths)} files"
    screen.check(with_flag == expected, f"with {flag}=all the container has {expected}", with_flag)


def _program(screen: Screen, client: Client, image: str, flag: str, program: Program) -> None:
    name = program.argv[0]
    flags = ["-e", f"{flag}=all"]
    plain = client.run(screen, [], image, *program.argv)
    missing = plain.returncode == 127 and "not found" in plain.output
    screen.check(missing, f"without {flag}, {name} is not found", plain.output)

    _says(screen, client, image, flag, program)

    # The program may look in its folder by itself: only the loader's own words are a proof.
    about = partial(_about, program.library)
    debug_flags = [*flags, "-e", "LD_DEBUG=libs"]
    debug = client.run(screen, debug_flags, image, *program.argv, excerpt=about)
    found = rf"search cache={_CACHE}\s+\d+:\s+trying file={re.escape(program.library_path)}\b"
    message = f"the loader finds {program.library} through {_CACHE}"
    screen.check(re.search(found, debug.output), message, about(debug.output))
    listing = client.run(screen, flags, image, "ldconfig", "-p", excerpt=about)
    line = rf"{re.escape(program.library)} .*=> {re.escape(program.library_path)}\b"
    message = f"ldconfig -p lists {program.library_path}"
    screen.check(re.search(line, listing.output), message, about(listing.output))


def _says(screen: Screen, client: Client, image: str, flag: str, program: Program) -> None:
    name = program.argv[0]
    nodes = sorted(f"/dev/{node}" for node in program.nodes)
    flags = ["-e", f"{flag}=all"]
    got = client.run(screen, flags, image, "ls", *nodes).stdout.split()
    screen.check(got == nodes, f"with {flag}=all the container has {' and '.join(nodes)}", got)
    if _has_driver(program):
        real = client.run(screen, flags, image, *program.argv)
        screen.check(real.returncode == 0, f"with {flag}=all, {name} runs", real.output)
        return
    real = client.run(screen, flags, image, *program.about, excerpt=_first_line)
    runs = real.returncode == 0 and program.says in real.output
    screen.check(runs, f"with {flag}=all, the driver's own {name} runs", real.output)
    screen.say(f"With {program.hardware}, {name} would list it here; this machine has none.")


def _has_driver(program: Program) -> bool:
    return any(Path("/dev", node).exists() for node in program.nodes)


def _first_line(output: str) -> str:
    return output.lstrip().partition("\n")[0]


def _about(library: str, output: str) -> str:
    """The lines that name a library, and what the loader says below such a line."""
    lines = output.splitlines()
    named = [number for number, line in enumerate(lines) if library in line]
    below = [
        number + 1
        for number in named
        if "find library=" in lines[number] and number + 1 < len(lines)
    ]
    return "\n".join(lines[number] for number in sorted({*named, *below})) or f"no {library}"
