"""Whether systemd's units could start a program: what hides it, and which SELinux label it has.

Source: systemd.exec(5), ``ProtectHome=`` and ``PrivateTmp=``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision.errors import UsageError
from provision.files import selinux_label
from provision.host.facts import selinux
from provision.run import find_program, run

_TRUE = ("yes", "true", "on", "1")
# What a setting hides, and the values that do: ProtectHome=read-only hides nothing.
_HIDING = {
    "ProtectHome": ((*_TRUE, "tmpfs"), ("/home", "/root", "/run/user")),
    "PrivateTmp": ((*_TRUE, "disconnected"), ("/tmp", "/var/tmp")),  # noqa: S108
}
_SETTING = re.compile(rf"^({'|'.join(_HIDING)})=(\S+)$", re.MULTILINE)
# What the kernel follows in one path: path_resolution(7).
_MOST_LINKS = 40
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


@dataclass(frozen=True, slots=True)
class Hidden:
    """A file that a program needs and that is hidden from a unit."""

    unit: str
    file: PurePosixPath
    # The setting that hides it, such as ``ProtectHome=yes``.
    setting: str
    folder: str

    def __str__(self) -> str:
        return f"{self.unit}: {self.file} ({self.setting} hides {self.folder})"


def require_visible(
    root: Path, program: str, units: Iterable[tuple[str, str]], *, checkout: Path | None
) -> None:
    """Refuse a program that units could not start, because it is hidden from them.

    Args:
        program: Its absolute path on the host; the file may be missing yet.
        checkout: The clone that this process runs from, for the advice in the error; None if
            provision is installed.
    """
    found = list(hidden(root, program, units))
    if not found:
        return
    source = checkout or "CHECKOUT"
    raise UsageError(
        f"Units can't run '{program}': it lies, or something that it needs does, in"
        f" {' and '.join(sorted({item.folder for item in found}))}, which is hidden from them.",
        resolution="Install a copy outside of home directories and of /tmp, and let that one"
        f" install the units: {_ADVICE.format(source=source)}",
        details="\n".join(map(str, found)),
    )


def require_label(root: Path, program: str, *, checkout: Path | None) -> None:
    """Refuse a program that SELinux would not let units start; its label is corrected first.

    pip gives new files the label of their folder, and no policy knows them as programs there.

    Args:
        root: Root of the host. Labels of another root than / are only looked at.
        program: The program's absolute path on the host.
        checkout: As ``require_visible``.
    """
    if selinux(root) not in {"enforcing", "permissive"}:
        return
    found = list(unlabelled(root, program))
    if found and root == Path("/") and find_program("restorecon"):
        files = [path for path, _label in found]
        run(["restorecon", *map(str, files)], why="label the program of the units", check=False)
        found = list(unlabelled(root, program))
    if found:
        raise UsageError(
            f"SELinux does not let units run '{program}'.",
            resolution="Install a copy where the policy expects programs, and let that one install"
            f" the units: {_ADVICE.format(source=checkout or 'CHECKOUT')}",
            details="\n".join(f"{path} has the label {label}" for path, label in found),
        )


def unlabelled(root: Path, program: str) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield what the kernel executes to start a program and SELinux knows as no program.

    Yields:
        The file, and its label. Files without a label are left out.
    """
    script = _places(root, PurePosixPath(program))[-1]
    interpreter = _interpreter(_below(root, script))
    for file in (script, _places(root, interpreter)[-1] if interpreter else None):
        label = selinux_label(_below(root, file)) if file else None
        if file and label and not _PROGRAM_LABEL.search(label):
            yield file, label


def hidden(root: Path, program: str, units: Iterable[tuple[str, str]]) -> Iterator[Hidden]:
    """Yield files that a program needs to start and that units don't see: one a unit and folder."""
    needed = list(dict.fromkeys(_needed(root, PurePosixPath(program))))
    for unit, text in units:
        # Some units start another program.
        if program not in text:
            continue
        for setting, value in _SETTING.findall(text):
            hiding, folders = _HIDING[setting]
            for folder in folders if value in hiding else ():
                place = _places(root, PurePosixPath(folder))[-1]
                inside = (path for path in needed if path.is_relative_to(place))
                if (first := next(inside, None)) is not None:
                    yield Hidden(unit, first, f"{setting}={value}", folder)


def _needed(root: Path, program: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the paths of a program, of its Python, and of the folders of its package."""
    places = _places(root, program)
    yield from places
    interpreter = _interpreter(_below(root, places[-1]))
    if interpreter is None:
        return
    yield from _places(root, interpreter)
    # The folder counts under the name that the program gives: a virtual environment consists of a
    # link to its Python and of the files beside that link.
    environment = _below(root, _places(root, interpreter.parent.parent)[-1])
    for named in _named_by(environment):
        yield from _places(root, named)


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


def _named_by(environment: Path) -> Iterator[PurePosixPath]:
    """Yield the folders that a virtual environment names outside of itself.

    Its base Python (PEP 405), and what an editable installation or an admin added to its path
    (docs.python.org, ``site``).
    """
    files = [environment / "pyvenv.cfg", *environment.glob("lib/python3*/site-packages/*.pth")]
    for file in files:
        try:
            lines = file.read_text(errors="surrogateescape").splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition("=")
            named = value.strip() if name.strip() == "home" else line.strip()
            if named.startswith("/"):
                yield PurePosixPath(named)


def _places(root: Path, path: PurePosixPath) -> list[PurePosixPath]:
    """Return the paths that a path leads through below a root: its links, and its end.

    Links are followed as a process of that host would, never out of the root.
    """
    todo = list(reversed(path.parts[1:]))
    here = PurePosixPath("/")
    places: list[PurePosixPath] = []
    while todo and len(places) < _MOST_LINKS:
        part = todo.pop()
        if part == "..":
            here = here.parent
            continue
        here /= part
        try:
            target = _below(root, here).readlink()
        except OSError:
            continue
        places.append(here)
        here = PurePosixPath("/") if target.is_absolute() else here.parent
        todo += reversed([part for part in target.parts if part != "/"])
    return [*places, here]


def _below(root: Path, path: PurePosixPath) -> Path:
    return root / path.relative_to("/")
