"""Reads the archive of a machine's Python, and says which wheels run with it.

This Python is independent of the machine's own files.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from dataclasses import dataclass, field
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


@dataclass
class _Found:
    """The contents of an archive, as far as it was read."""

    names: set[str] = field(default_factory=set)
    version: tuple[int, int] | None = None
    machine: str | None = None
    glibc: str | None = None


def read_python(path: Path) -> HostPython:
    """Read the description of an archive."""
    if not path.is_file():
        raise NotFoundError(f"There is no file '{path}'.", resolution=_WAY_OUT)
    found = _Found()
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                _note(found, archive, member)
    except (tarfile.TarError, zlib.error, ValueError, EOFError, OSError) as error:
        raise _refusal(path, f"is not an archive: {error}") from error
    if found.version is None or found.machine is None or _PROGRAM not in found.names:
        raise _refusal(path, f"has no '{_ROOT / _PROGRAM}'")
    if found.glibc is None:
        raise _refusal(path, "contains no C library")
    if found.version < _OLDEST:
        version = ".".join(map(str, found.version))
        raise _refusal(path, f"has Python {version}, and provision needs 3.11 or newer")
    return HostPython(path, found.version, found.machine, found.glibc)


def _note(found: _Found, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    place = PurePosixPath(member.name)
    if not place.is_relative_to(_ROOT):
        if member.isdir() and _ROOT.is_relative_to(place):
            return
        raise tarfile.TarError(f"'{member.name}' is not below '{_ROOT}'")
    if ".." in place.parts:
        raise tarfile.TarError(f"'{member.name}' leads out of it")
    name = str(place.relative_to(_ROOT))
    found.names.add(name)
    stream = archive.extractfile(member) if member.isreg() else None
    if stream is None:
        return
    if program := _PROGRAMS.fullmatch(name):
        found.version = (int(program[1]), int(program[2]))
        found.machine = elf_machine(stream.read(HEAD_SIZE))
    elif _LIBRARY.fullmatch(name) and (match := _VERSION.search(stream.read())):
        found.glibc = match[1].decode()


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
