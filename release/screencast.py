"""What a run has typed and seen, as an animated picture: `python -m screencast FILE PICTURE`.

A test writes FILE (`pytest --record`), a JSON document a line. The picture is an SVG that CSS
moves: forges run no script in one; its text can be selected. Where no motion is wanted, it is the
last screen.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Recording", "picture", "read"]

_COLUMNS, _ROWS = 100, 28
# Pixels: of the font, of its widest letter, from line to line, around all.
_SIZE, _LETTER, _LINE, _MARGIN = 13, 7.85, 18, 14
_WIDTH = round(_COLUMNS * _LETTER)
# Seconds: until a command comes, until its output does, for a line of it to be read, and for the
# last screen. How long a command took is left out: an emulator is a hundred times slower than what
# it stands for.
_BEFORE, _WAIT, _READ, _AT_END = 0.6, 0.4, 0.2, 5.0
# All of it is made faster or slower to be within these.
_SHORTEST, _LONGEST = 20.0, 30.0
_HEAD = "Recorded in a virtual machine; waits are cut"
# The program's colours (`provision.cli.output`), which it does not print into a pipe.
_GOOD, _BAD, _WAITS = "#7ee787", "#ff7b72", "#d29922"
_WORDS = {"ready": "good", "failed": "bad", "missing": "bad", "next-kernel-not-ready": "bad"}
_COLOURED = re.compile(r"(?<![\w-])(next-kernel-not-ready|ready|failed|missing)(?=[ ;]|$)")

_STYLE = f"""\
text{{font:{_SIZE}px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}}
rect{{fill:#161b22}}
.said{{fill:#c9d1d9}}
.command{{fill:#f0f6fc;font-weight:bold}}
.good{{fill:{_GOOD};font-weight:bold}}
.bad{{fill:{_BAD};font-weight:bold}}
.warn{{fill:{_WAITS};font-weight:bold}}
.stage{{fill:#79c0ff;font-weight:bold}}
.note{{fill:#8b949e}}
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """A file that notes are added to; None: nothing is noted."""

    file: Path | None = None

    def add(self, command: str, output: str, *, lines: int, why: str = "") -> None:
        """Note a command, what it said, how many lines of that to show, and what to say before."""
        if self.file is None:
            return
        # Pytest writes `FILE::test_name (call)`.
        stage = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split()[0]
        note = {"stage": stage, "why": why, "command": command, "output": output, "lines": lines}
        with self.file.open("a") as stream:
            stream.write(json.dumps(note) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """What a recording has noted."""
    return [json.loads(line) for line in file.read_text().splitlines()]


class _Line(NamedTuple):
    """A line of the terminal, and when it appears."""

    at: float
    kind: str
    text: str


def picture(records: Iterable[dict[str, Any]]) -> str:
    """The SVG of what was recorded."""
    lines = list(_lines(records))
    end = lines[-1].at + _AT_END
    seconds = min(max(end, _SHORTEST), _LONGEST)
    percent = [f"{100 * line.at / end:.3f}%" for line in lines]
    appears = "".join(
        f"@keyframes l{row}{{0%{{visibility:hidden}}{at}{{visibility:visible}}}}"
        f".l{row}{{animation-name:l{row}}}\n"
        for row, at in enumerate(percent)
    )
    scrolls = "".join(
        f"{at}{{transform:translateY({(_ROWS - 1 - row) * _LINE}px)}}"
        for row, at in enumerate(percent)
        if row >= _ROWS
    )
    shift = min(_ROWS - len(lines), 0) * _LINE
    texts = "\n".join(_text(row, line) for row, line in enumerate(lines))
    height = _ROWS * _LINE
    frame = f'width="{_WIDTH + 2 * _MARGIN}" height="{height + 2 * _MARGIN}"'
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" {frame} role="img" xml:space="preserve">
<title>A recording of a terminal</title>
<style>
{_STYLE}@media (prefers-reduced-motion:no-preference){{
.all,g g{{animation:{seconds:.1f}s step-end infinite}}
.all{{animation-name:all}}
@keyframes all{{0%{{transform:translateY(0)}}{scrolls}}}
{appears}}}
</style>
<rect width="100%" height="100%" rx="8"/>
<svg x="{_MARGIN}" y="{_MARGIN}" width="{_WIDTH}" height="{height}">
<g class="all" transform="translate(0 {shift})">
{texts}
</g>
</svg>
</svg>
"""


def _text(row: int, line: _Line) -> str:
    content = escape(line.text)
    if line.kind == "said":
        # A table's row and the first line of `status` name states; compilers use these words too.
        if line.text.startswith((" ", "This host")) and not line.text.startswith("  "):
            content = _COLOURED.sub(_coloured, content)
        content = re.sub(r"\berror:", '<tspan class="bad">error:</tspan>', content)
        content = re.sub(r"What to do:", '<tspan class="warn">What to do:</tspan>', content)
    y = row * _LINE + _SIZE
    return f'<g class="l{row}"><text class="{line.kind}" y="{y}">{content}</text></g>'


def _coloured(word: re.Match[str]) -> str:
    return f'<tspan class="{_WORDS[word[0]]}">{word[0]}</tspan>'


def _lines(records: Iterable[dict[str, Any]]) -> Iterator[_Line]:
    now = 0.0
    stage = ""
    yield _Line(now, "note", _HEAD)
    for number, record in enumerate(records):
        # The first command is there from the beginning: many see the first picture only.
        if number:
            now += _BEFORE
        if record["stage"] != stage:
            if stage:
                yield _Line(now, "said", "")
            stage = record["stage"]
            title = stage.removeprefix("test_").replace("_", " ")
            yield _Line(now, "stage", f"{title[0].upper()}{title[1:]}")
        for part in _wrapped(record["why"]) if record["why"] else ():
            yield _Line(now, "note", part)
        for part in _wrapped(f"# {record['command']}"):
            yield _Line(now, "command", part)
        if number:
            now += _WAIT
        said = record["output"].rstrip().splitlines()
        if len(said) > record["lines"] > 0:
            yield _Line(now, "note", f"({len(said) - record['lines']} more lines)")
        shown = said[len(said) - min(record["lines"], len(said)) :]
        for part in (part for line in shown for part in _wrapped(line)):
            yield _Line(now, "said", part)
        now += _READ * max(len(shown), 4)


def _wrapped(line: str) -> list[str]:
    """A line as the program shows it on a terminal: it is broken between words."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", line).expandtabs().rstrip()
    indent = " " * (len(plain) - len(plain.lstrip()) + 2)
    parts = textwrap.wrap(
        plain, _COLUMNS, subsequent_indent=indent, break_on_hyphens=False, replace_whitespace=False
    )
    return parts or [""]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(picture(read(Path(sys.argv[1]))))
