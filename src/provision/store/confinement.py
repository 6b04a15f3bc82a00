"""Whether systemd's units could start a program: what hides it, and which SELinux label it has."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from provision.errors import UsageError
from provision.files import in_root, selinux_label
from provision.host.facts import selinux
from provision.run import find_program, run

# What ProtectHome=yes and PrivateTmp=yes hide: systemd.exec(5). All units have the one or the
# other, and those of the boot have both.
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - nothing is written there
# As much of a script's first line as the kernel reads: BINPRM_BUF_SIZE in linux/binfmts.h.
_FIRST_LINE = 256
# What pip writes where that is too little for the path of Python: the shell starts it from the
# second line. Source: distlib/scripts.py, ScriptMaker._build_shebang.
_SHELL = re.compile(rb"#!/bin/sh\s*$")
_LAUNCHED = re.compile(rb"^'''exec'\s+")
_LONGEST_LINE = 8192
# What a service may execute under the policies of distros: bin_t, and the TYPE_exec_t of programs
# with a domain of their own.
_PROGRAM_LABEL = re.compile(r":(bin_t|\w+_exec_t)(:|$)")
# A folder for which all policies know which files in it are programs, unlike for /usr/local/lib.
_ADVICE = (
    "/usr/bin/python3 -m venv /opt/provision && /opt/provision/bin/pip install {source} &&"
    " /opt/provision/bin/provision units install"
)


def require_visible(root: Path, program: str, *, checkout: Path | None) -> None:
    """Refuse a program that units could not start, because it is hidden from them.

    Args:
        program: Its absolute path on the host; the file may be missing yet.
        checkout: The clone that this process runs from, for the advice in the error; None if
            provision is installed.
    """
    needed = [PurePosixPath(program), *executed(root, program)]
    if root == Path("/") and needed[1].is_relative_to(Path(sys.prefix).resolve()):
        # An editable installation, or a Python of its own.
        needed += [PurePosixPath(__file__), PurePosixPath(sys.base_prefix)]
    places = {name: _resolved(root, PurePosixPath(name)) for name in _HIDDEN}
    found = {
        f"{path} (units don't see {name})": name
        for path in needed
        for name, place in places.items()
        if path.is_relative_to(place) or path.is_relative_to(name)
    }
    if found:
        raise UsageError(
            f"Units can't run '{program}': it lies, or something that it needs does, in"
            f" {' and '.join(sorted(set(found.values())))}, which is hidden from them.",
            resolution="Install a copy outside of home directories and of /tmp, and let that one"
            f" install the units: {_ADVICE.format(source=checkout or 'CHECKOUT')}",
            details="\n".join(found),
        )


def require_label(root: Path, program: str, *, checkout: Path | None) -> None:
    """Refuse a program that SELinux would not let units start; its label is corrected first.

    pip gives new files the label of their folder, and no policy knows them as programs there.

    Args:
        root: Root of the host. Labels of another root than / are only looked at.
        checkout: As ``require_visible``.
    """
    if selinux(root) not in {"enforcing", "permissive"}:
        return
    found = dict(unlabelled(root, program))
    if found and root == Path("/") and find_program("restorecon"):
        run(["restorecon", *map(str, found)], why="label the program of the units", check=False)
        found = dict(unlabelled(root, program))
    if found:
        raise UsageError(
            f"SELinux does not let units run '{program}'.",
            resolution="Install a copy where the policy expects programs, and let that one install"
            f" the units: {_ADVICE.format(source=checkout or 'CHECKOUT')}",
            details="\n".join(f"{path} has the label {label}" for path, label in found.items()),
        )


def unlabelled(root: Path, program: str) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield what ``executed`` returns and SELinux knows as no program, with its label."""
    for file in executed(root, program):
        label = selinux_label(root / file.relative_to("/"))
        if label and not _PROGRAM_LABEL.search(label):
            yield file, label


def executed(root: Path, program: str) -> list[PurePosixPath]:
    """Return what the kernel executes to start a program: the file, and a script's interpreter."""
    script = _resolved(root, PurePosixPath(program))
    interpreter = _interpreter(root / script.relative_to("/"))
    return [script, _resolved(root, interpreter)] if interpreter else [script]


def _resolved(root: Path, path: PurePosixPath) -> PurePosixPath:
    place = in_root(root, path.relative_to("/"))
    return PurePosixPath(place.resolve() if root == Path("/") else f"/{place.relative_to(root)}")


def _interpreter(script: Path) -> PurePosixPath | None:
    """Return the absolute path that a script's first line names: execve(2)."""
    try:
        with script.open("rb") as stream:
            line = stream.readline(_FIRST_LINE)
            if _SHELL.match(line):
                line = _LAUNCHED.sub(b"#!", stream.readline(_LONGEST_LINE))
    except OSError:
        return None
    words = line[2:].split()
    if not line.startswith(b"#!") or not words or not words[0].startswith(b"/"):
        return None
    return PurePosixPath(words[0].decode(errors="surrogateescape"))
