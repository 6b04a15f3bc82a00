"""Runs a program of ours in the build container, and says in one line why it failed.

``python3 step.py NAME ARGUMENT…`` calls ``main`` of the module NAME beside this file, on Python's
standard library only (3.9 or newer). A failure ends with status 1 and lines that begin with NAME,
by which ``output.py`` says what to do; never with a traceback:

* ``NAME: …``: what the program itself refuses, by an exception that it defines.
* ``NAME: failed: …``: a program that it started, or a file that it could not read or write.
* ``NAME: mistake: …``: everything else, with the line of our code.
"""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess  # noqa: TID251 - in the build container, where there is no run.py
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

_LONGEST = 300


class ToolError(RuntimeError):
    """A program that failed: its command line, its status, and the last line that it wrote."""


def run_tool(arguments: Sequence[str]) -> str:
    """Run a program and return its standard output; what it says of mistakes is in the log.

    What a vendor wrote in another encoding than UTF-8, such as an author's name, has replacement
    characters.

    Raises:
        ToolError: It is missing, or failed.
    """
    shown = shlex.join(arguments)[:_LONGEST]
    try:
        done = subprocess.run(
            arguments,
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise ToolError(f"'{arguments[0]}' can't be started: {error.strerror}") from error
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        sys.stderr.write(done.stdout)
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        last = f": {lines[-1].strip()}" if lines else ""
        raise ToolError(f"'{shown}' ended with status {done.returncode}{last}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Run a program: its name, and its arguments."""
    name, *rest = arguments
    # A program's own exceptions are recognised by the module that defines them.
    module = importlib.import_module(name)
    title = getattr(module, "TITLE", name)
    try:
        module.main(rest, run_tool)
    except Exception as error:
        sys.stdout.flush()
        for line in reason(error, name):
            sys.stderr.write(f"{title}: {line}\n")
        return 1
    return 0


def reason(error: Exception, name: str) -> Iterator[str]:
    """Yield what is said of a failure of the program of that name, one line each."""
    if type(error).__module__ == name:
        yield from str(error).splitlines()
    elif isinstance(error, ToolError):
        yield f"failed: {error}"
    elif isinstance(error, subprocess.CalledProcessError):
        command = shlex.join(map(str, error.cmd))[:_LONGEST]
        yield f"failed: '{command}' ended with status {error.returncode}"
    elif isinstance(error, OSError):
        file = f"'{os.fsdecode(error.filename)}': " if error.filename is not None else ""
        yield f"failed: {file}{error.strerror or error}"
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}, line {frame.lineno}"
        yield f"mistake: {type(error).__name__} in {place}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
