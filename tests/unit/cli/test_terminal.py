"""In a terminal lines fit, colours come unless they are unwanted, and names are completed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from kit.host_tree import HostTree
from kit.process import run

_PROGRAM = Path(sys.executable).with_name("provision")
_WIDTH = 60
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _in_terminal(*words: str | Path, **variables: str) -> str:
    """What a command prints in a terminal of 60 columns."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, _WIDTH, 0, 0))
        dropped = ("COLUMNS", "PYTEST")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
        argv = [str(_PROGRAM), *map(str, words)]
        os.execve(_PROGRAM, argv, {**kept, "TERM": "xterm", **variables})  # noqa: S606
    printed = b""
    # When the last process that has the terminal ends, Linux answers EIO.
    with suppress(OSError):
        while piece := os.read(terminal, 4096):
            printed += piece
    os.close(terminal)
    os.waitpid(child, 0)
    return printed.decode()


def test_lines_fit_the_terminal_and_words_stay_whole(tmp_path: Path) -> None:
    words = ("resolve", "nvida", "--kernel", "6.1.0-56-amd64", "--root", tmp_path)
    lines = _COLOUR.sub("", _in_terminal(*words)).splitlines()
    assert len(lines) > 2
    # A command to paste is one piece.
    assert [line for line in lines if len(line) > _WIDTH and " " in line.strip()] == []


@pytest.mark.parametrize(("value", "is_coloured"), [(None, True), ("", True), ("1", False)])
def test_colours_are_left_out_where_they_are_unwanted(
    tmp_path: Path, value: str | None, *, is_coloured: bool
) -> None:
    variables = {} if value is None else {"NO_COLOR": value}
    printed = _in_terminal("resolve", "nvida", "--root", tmp_path, **variables)
    assert bool(_COLOUR.search(printed)) == is_coloured


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("res", ["resolve"]),
        ("resolve nvi", ["nvidia"]),
        ("load --root {root} z", ["zfs"]),
    ],
)
def test_names_are_completed(host_tree: HostTree, words: str, offered: list[str]) -> None:
    host_tree.want()
    line = f"provision {words.format(root=host_tree.root)}"
    variables = {
        "_PROVISION_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    printed = run([_PROGRAM], env=variables).stdout.split()
    assert printed == [f"plain,{name}" for name in offered]
