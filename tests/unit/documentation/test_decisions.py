"""Pages of docs/decisions have a status and dates, the index lists them, mentions lead to them."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING

import pytest

from kit.cache import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = REPOSITORY / "docs" / "decisions"
_PAGES = sorted(_FOLDER.glob("[0-9]*.md"))
_ROW = re.compile(r"^\| \[(\d\d)\]\((\S+)\) \| (.+?) \| (\w+) \| (.+?) \|$", re.MULTILINE)
_HEAD = re.compile(r"# (\d\d) (.+)\n\nStatus: (\w+)[.,;] ?.*?Date: (.+?)\.\n\n")


@pytest.mark.parametrize("page", _PAGES, ids=[page.stem for page in _PAGES])
def test_a_page_has_status_dates_and_the_three_parts(page: Path) -> None:
    text = page.read_text()
    head = _HEAD.match(text)
    assert head is not None, "the head is: # NN Title, then: Status: …. Date: YYYY-MM-DD."
    assert page.name.startswith(f"{head[1]}-")
    assert head[3] in {"holds", "tried"}
    for day in head[4].removeprefix("revised ").split(", revised "):
        date.fromisoformat(day)
    parts = [text.count(f"**{part}.**") for part in ("Context", "Decision", "Consequence")]
    assert min(parts) >= 1
    assert parts[0] == parts[1], "each section has a context and a decision"


def test_the_index_has_each_page_in_order() -> None:
    rows = [list(row) for row in _ROW.findall((_FOLDER / "README.md").read_text())]
    heads = [(page.name, _HEAD.match(page.read_text())) for page in _PAGES]
    assert rows == [
        [head[1], name, head[2], head[3], head[4]] for name, head in heads if head is not None
    ]
    assert [row[0] for row in rows] == [f"{number:02}" for number in range(1, len(rows) + 1)]


_TEXTS = {".lintian-overrides", ".ld", ".md", ".py", ".rs", ".sh", ".spec", ".toml"}
_FOLDERS = ("docs", "hooks", "release", "src", "templates", "tests")
_MENTION = re.compile(r"docs/decisions/(\d\d[\w-]*(?:\.md)?)")


@pytest.mark.parametrize("folder", _FOLDERS)
def test_a_mention_names_the_file_of_a_page(folder: str) -> None:
    """Numbers change when pages are merged: a mention has the whole name of the file."""
    wrong = {
        str(path.relative_to(REPOSITORY)): name
        for path in _texts(REPOSITORY / folder)
        for name in _MENTION.findall(path.read_text(errors="replace"))
        if not (_FOLDER / name).is_file()
    }
    assert wrong == {}


def _texts(folder: Path) -> list[Path]:
    """The folder's own texts, without what builds leave there."""
    return [
        path
        for path in folder.rglob("*")
        if path.suffix in _TEXTS and path.is_file() and "target" not in path.parts
    ]
