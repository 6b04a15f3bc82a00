"""Reads the archive of a machine's Python, and says which wheels run with it.

This Python is independent of the machine's own files.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from provision.elf import HEAD_SIZE, elf_machine
from provision.errors import NotFoundError, UsageError

_ROOT = PurePosixPath("opt/provision/python")
_PROGRAM = "bin/python3"
_PROGRAMS = re.compile(r"bin/python(\d+)\.(\d+)")
_LIBRARY = re.compile(r"lib/(.*/)?libc(-2\.\d+)?\.so(\.6)?")
# Every glibc has this text, which 'libc.so.6' prints when it is run.
_VERSION = re.compile(rb"stable release version (2\.\d+)")
_OLDEST = (3, 11)
_WAY_OUT = "Make one: provision export host-python --output FILE"


@dataclass(frozen=True, slots=True)
class HostPython:
    """An archive of a Python."""

    path: Path
    version: tuple[int, int]
    # Architecture as ``uname -m`` prints it.
    machine: str
    glibc: str


def read_python(path: Path) -> HostPython:
    """Read the description of an archive."""
    if not path.is_file():
        raise NotFoundError(f"There is no file '{path}'.", resolution=_WAY_OUT)
    names: set[str] = set()
    version = machine = glibc = None
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = _name(member)
                names.add(name)
                stream = archive.extractfile(member) if member.isreg() else None
                if stream and (program := _PROGRAMS.fullmatch(name)):
                    version = (int(program[1]), int(program[2]))
                    machine = elf_machine(stream.read(HEAD_SIZE))
                elif stream and _LIBRARY.fullmatch(name):
                    found = _VERSION.search(stream.read())
                    glibc = found[1].decode() if found else glibc
    except (tarfile.TarError, zlib.error, ValueError, EOFError, OSError) as error:
        raise _refusal(path, f"is not an archive: {error}") from error
    if version is None or machine is None or _PROGRAM not in names:
        raise _refusal(path, f"has no '{_ROOT / _PROGRAM}'")
    if glibc is None:
        raise _refusal(path, "contains no C library")
    if version < _OLDEST:
        text = ".".join(map(str, version))
        raise _refusal(path, f"has Python {text}, and provision needs 3.11 or newer")
    return HostPython(path, version, machine, glibc)


def _name(member: tarfile.TarInfo) -> str:
    """Return the path of a member below the folder of the Python; for folders above it, ``..``."""
    place = PurePosixPath(member.name)
    if member.isdir() and place != _ROOT and _ROOT.is_relative_to(place):
        return ".."
    if not place.is_relative_to(_ROOT):
        raise tarfile.TarError(f"'{member.name}' is not below '{_ROOT}'")
    if ".." in place.parts:
        raise tarfile.TarError(f"'{member.name}' leads out of it")
    return str(place.relative_to(_ROOT))


def _refusal(path: Path, what: str) -> UsageError:
    return UsageError(f"'{path}' {what}.", resolution=_WAY_OUT)


_OLDEST_GLIBC = 5


def platforms(python: HostPython) -> list[str]:
    """Return the platforms whose wheels run with a Python, best first.

    Source: https://peps.python.org/pep-0600/
    """
    newest = int(python.glibc.split(".")[1])
    minors = range(newest, _OLDEST_GLIBC - 1, -1)
    known = [f"manylinux_2_{minor}_{python.machine}" for minor in minors]
    return [*known, f"manylinux2014_{python.machine}"]


def suits(wheel: str, python: HostPython) -> bool:
    """Whether a wheel suits a Python, by its name.

    Source: https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
    """
    try:
        tags = parse_wheel_filename(wheel)[3]
    except InvalidWheelFilename:
        return False
    own = "cp" + "".join(map(str, python.version))
    return any(
        (tag.platform == "any" or tag.platform.endswith(f"_{python.machine}"))
        and (tag.interpreter in {"py3", own} or tag.abi == "abi3")
        for tag in tags
    )
