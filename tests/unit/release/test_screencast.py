"""A recording's picture is a well-formed one of what was recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from screencast import Recording, picture, read

if TYPE_CHECKING:
    from pathlib import Path

_TEXT = "{http://www.w3.org/2000/svg}text"


def test_a_recording_becomes_a_picture_of_its_commands_and_the_end_of_what_they_said(
    tmp_path: Path,
) -> None:
    recording = Recording(tmp_path / "notes")
    recording.add("uname -r", "6.1\n", 1, lines=3)
    recording.add("make <x>", "".join(f"line {n} & more\n" for n in range(200)), 84, lines=40)
    svg = picture(read(tmp_path / "notes"))
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own
    texts = [element.text for element in root.iter(_TEXT)]
    stage = "A recording becomes a picture of its commands and the end of what they said"
    assert texts[:6] == [stage, "# uname -r", "6.1", "# make <x>", "84 s", "(160 lines)"]
    assert texts[6:] == [f"line {n} & more" for n in range(160, 200)]
    (seconds,) = re.findall(r"animation:([0-9.]+)s", svg)
    assert 60 <= float(seconds) <= 90
    assert "<script" not in svg
