"""Fake programs that write down how they were called: better than a mock, it is a real process."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FakeProgram", "fake_program"]

_SCRIPT = """\
#!{python} -IS
import json, os, sys
with open({calls!r}, "a") as calls:
    calls.write(json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ)}}) + "\\n")
if {then!r}:
    os.execv({then!r}, [{then!r}, *sys.argv[1:]])
sys.stdout.write({stdout!r})
sys.stderr.write({stderr!r})
sys.exit({status})
"""


class _Call(TypedDict):
    argv: list[str]
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class FakeProgram:
    """A program on disk, and the calls that it has had."""

    path: Path
    _calls: Path

    def calls(self) -> list[list[str]]:
        """The arguments of each call, without the program's name, oldest first."""
        return [record["argv"] for record in self._records()]

    def environments(self) -> list[dict[str, str]]:
        """The environment of each call, oldest first."""
        return [record["env"] for record in self._records()]

    def forget(self) -> None:
        """Let the next call be the first."""
        self._calls.unlink(missing_ok=True)

    def _records(self) -> list[_Call]:
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [json.loads(line) for line in lines]


def fake_program(
    folder: Path,
    name: str,
    *,
    stdout: str = "",
    stderr: str = "",
    status: int = 0,
    then: Path | None = None,
) -> FakeProgram:
    """Write `folder/name`, a program that records its calls, prints, and exits with `status`.

    With `then` it becomes that program instead, as it was called.
    """
    calls = folder / f".{name}.calls"
    path = folder / name
    script = _SCRIPT.format(
        python=sys.executable,
        calls=str(calls),
        stdout=stdout,
        stderr=stderr,
        status=status,
        then=str(then) if then else "",
    )
    path.write_text(script)
    path.chmod(0o755)
    return FakeProgram(path, calls)
