"""A user of the host without rights, who attacks what root does: a real one, by setpriv."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.probe import find_program, is_root, need
from kit.process import run

# Debian's nobody: it owns nothing.
UID = 65534
_PYTHON = str(Path(sys.executable).resolve())
# What an attack can't do this time, it tries again.
_LOOP = """
print("ready")
while True:
    try:
        exec(code, {"os": os, "sys": sys})
    except OSError:
        pass
"""
_USER = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder of root's whose path every user may walk, unlike that of pytest's."""
    need(is_root() and find_program("setpriv"), "root and setpriv", "only root has other users")
    folder = Path(tempfile.mkdtemp(prefix="provision-users-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def as_user(code: str, *words: object) -> str:
    """Run a Python program as the user; returns what it prints."""
    return run([*_USER, _PYTHON, "-I", "-c", code, *map(str, words)]).stdout


@contextmanager
def attacking(code: str, *words: object) -> Iterator[list[str]]:
    """Run a Python program as the user, again and again until the block ends.

    Yields:
        The lines that it printed, once it has ended.
    """
    loop = f"import os, sys\ncode = compile(sys.argv.pop(1), 'attack', 'exec')\n{_LOOP}"
    argv: list[str] = [*_USER, _PYTHON, "-I", "-u", "-c", loop, code, *map(str, words)]
    printed: list[str] = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield printed
        finally:
            process.kill()
            printed += process.stdout.read().splitlines()
