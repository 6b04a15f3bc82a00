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
# Seconds: until a command comes, at most until its output does, for each line of it to appear and
# to be read, and for the last screen.
_BEFORE, _WAIT, _APPEARS, _READ, _AT_END = 0.8, 2.0, 0.06, 0.3, 6.0
# All of it is made faster or slower to be within these.
_SHORTEST, _LONGEST = 60.0, 90.0
# From here on, it is said how long a command took.
_WORTH_SAYING_S = 5

_STYLE = f"""\
text{{font:{_SIZE}px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}}
rect{{fill:#161b22}}
.said{{fill:#c9d1d9}}
.command{{fill:#7ee787;font-weight:bold}}
.stage{{fill:#79c0ff;font-weight:bold}}
.note{{fill:#8b949e}}
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """A file that notes are added to; None: nothing is noted."""

    file: Path | None = None

    def add(self, command: str, output: str, seconds: float, *, lines: int) -> None:
        """Note a command, what it said, and how many lines of that the picture is to show."""
        if self.file is None:
            return
        # Pytest writes `FILE::test_name (call)`.
        stage = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split()[0]
        note = {"stage": stage, "command": command, "output": output, "seconds": seconds}
        with self.file.open("a") as stream:
            stream.write(json.dumps({**note, "lines": lines}) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """What a recording has noted."""
    return [json.loads(line) for line in file.read_text().splitlines()]


class _Line(NamedTuple):
    """A line of the terminal, when it appears, and what is said at its right."""

    at: float
    kind: str
    text: str
    right: str = ""


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
<svg xmlns="http://www.w3.org/2000/svg" {frame} role="img">
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
    y = row * _LINE + _SIZE
    text = f'<text class="{line.kind}" y="{y}">{escape(line.text)}</text>'
    if line.right:
        text += f'<text class="note" x="{_WIDTH}" y="{y}" text-anchor="end">{line.right}</text>'
    return f'<g class="l{row}">{text}</g>'


def _lines(records: Iterable[dict[str, Any]]) -> Iterator[_Line]:
    now = 0.0
    stage = ""
    for record in records:
        if record["stage"] != stage:
            if stage:
                yield _Line(now, "said", "")
            stage = record["stage"]
            now += _BEFORE
            title = stage.removeprefix("test_").replace("_", " ")
            yield _Line(now, "stage", f"{title[0].upper()}{title[1:]}")
        now += _BEFORE
        took = record["seconds"]
        right = f"{took:.0f} s" if took >= _WORTH_SAYING_S else ""
        *parts, last = _wrapped(f"# {record['command']}")
        for part in parts:
            yield _Line(now, "command", part)
        yield _Line(now, "command", last, right)
        now += min(took, _WAIT)
        said = record["output"].rstrip().splitlines()
        if len(said) > record["lines"]:
            yield _Line(now, "note", f"({len(said) - record['lines']} lines)")
        shown = [part for line in said[-record["lines"] :] for part in _wrapped(line)]
        for part in shown:
            now += _APPEARS
            yield _Line(now, "said", part)
        now += _READ * max(len(shown), 2)


def _wrapped(line: str) -> list[str]:
    """A line as a terminal shows it."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", line).expandtabs()
    return [plain[at : at + _COLUMNS] for at in range(0, max(len(plain), 1), _COLUMNS)]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(picture(read(Path(sys.argv[1]))))
