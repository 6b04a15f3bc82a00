"""Programs that are ended by their limit, with all that they started: real processes."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from kit.probe import is_root, need, need_programs
from kit.process import run as start
from kit.process import wait_for
from provision.errors import ProvisionError
from provision.run import stream

_WAIT_S = 60.0
# By then a shell has begun, on a busy machine too.
_BEGUN_S = 4
# Two processes that would run for hours, one the child of the other, and both hold the pipes.
_HOURS = 'sleep 7201 & echo "$! $$" >"$0"; sleep 7202'


def test_a_long_program_is_ended_with_what_it_started(tmp_path: Path) -> None:
    need(is_root(), "root", "namespaces want it")
    lines: list[str] = []
    # Their numbers are those of a namespace of their own: they are known by what they hold open.
    held = tmp_path / "held"
    script = f"exec 3>{held}; echo begun; {_HOURS}"
    words = ["sh", "-c", script, str(tmp_path / "pids")]
    with pytest.raises(ProvisionError, match=f"did not finish within {_BEGUN_S} s"):
        stream(words, why="test it", on_line=lines.append, timeout=_BEGUN_S)
    assert lines == ["begun"]
    assert held.exists()

    def is_open() -> bool:
        return any(_points_to(handle, held) for handle in Path("/proc").glob("[0-9]*/fd/3"))

    wait_for("their end", lambda: not is_open(), within_s=_WAIT_S)


def _points_to(handle: Path, file: Path) -> bool:
    try:
        return handle.samefile(file)
    except OSError:
        return False


def test_a_program_has_no_terminal_to_ask_on(tmp_path: Path) -> None:
    need_programs("script")
    asking = "run(['sh', '-c', ': </dev/tty'], why='ask', check=False)"
    (tmp_path / "ask.py").write_text(
        "import os\nfrom provision.run import run\nos.open('/dev/tty', os.O_RDWR)\n"
        f"print('status', {asking}.returncode)\n"
    )
    # script(1) gives it a terminal, as a person has one.
    words = [sys.executable, tmp_path / "ask.py"]
    done = start(["script", "-qec", shlex.join(map(str, words)), "/dev/null"])
    assert re.search(r"^status [1-9]", done.stdout, re.MULTILINE), done.output
