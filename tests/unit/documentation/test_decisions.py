"""A mention of a decision leads to its page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kit.cache import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = REPOSITORY / "docs" / "decisions"
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
