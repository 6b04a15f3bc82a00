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
    recording.add("uname -r", "6.1\n", lines=3, why="What runs")
    recording.add("make <x>", "".join(f"line {n} & more\n" for n in range(200)), lines=40)
    svg = picture(read(tmp_path / "notes"))
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own
    texts = ["".join(element.itertext()) for element in root.iter(_TEXT)][1:]
    stage = "A recording becomes a picture of its commands and the end of what they said"
    assert texts[:6] == [stage, "What runs", "# uname -r", "6.1", "# make <x>", "(160 more lines)"]
    assert texts[6:] == [f"line {n} & more" for n in range(160, 200)]
    (seconds,) = re.findall(r"animation:([0-9.]+)s", svg)
    assert 20 <= float(seconds) <= 30
    assert "<script" not in svg


def test_a_long_line_is_broken_between_words_and_a_table_keeps_its_columns(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "notes")
    words = "a patch in the folder " * 9
    recording.add("provision status", f"{words}\n a   ready   b\n", lines=4)
    root = ElementTree.fromstring(picture(read(tmp_path / "notes")))  # noqa: S314 - our own
    texts = ["".join(element.itertext()) for element in root.iter(_TEXT)]
    assert texts[-1] == " a   ready   b"
    assert [word for text in texts[3:-1] for word in text.split()] == words.split()
    assert root.attrib["{http://www.w3.org/XML/1998/namespace}space"] == "preserve"
