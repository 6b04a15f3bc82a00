"""A real program that writes down how it is called."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RecordedProgram", "record"]

_SCRIPT = """\
#!{python} -IS
import json, os, sys
with open({calls!r}, "a") as calls:
    calls.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
os.execv({program!r}, [{program!r}, *sys.argv[1:]])
"""


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """A program on disk, and the calls that it has had."""

    path: Path
    _calls: Path

    def calls(self) -> list[Any]:
        """The arguments and the environment of each call, oldest first."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [json.loads(line) for line in lines]

    def forget(self) -> None:
        """Let the next call be the first."""
        self._calls.unlink(missing_ok=True)


def record(program: Path, folder: Path) -> RecordedProgram:
    """Write a program of the same name into `folder`, which becomes `program` as it was called."""
    path = folder / program.name
    calls = folder / f".{program.name}.calls"
    path.write_text(_SCRIPT.format(python=sys.executable, calls=str(calls), program=str(program)))
    path.chmod(0o755)
    return RecordedProgram(path, calls)
