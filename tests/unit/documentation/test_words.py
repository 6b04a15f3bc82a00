"""Pages, docstrings and comments are in a native technical writer's words: some are kept out."""

from __future__ import annotations

import io
import re
import tokenize
from typing import TYPE_CHECKING

import pytest

from kit.cache import REPOSITORY
from kit.pages import pages

if TYPE_CHECKING:
    from pathlib import Path

# What to write instead stands beside each in the message of a failure.
_INSTEAD = {
    "alone": "only",
    "nobody": "no one, or say what does not happen",
    "somebody": "a person, a program, another",
    "whoever": "the one who, a person who",
    "anew": "again",
    "shall": "has to, will",
    "told": "given, asked",
    "tells of": "says",
    "mend": "correct, repair",
    "is none": "does not exist",
    "story": "scenario",
    "door": "front end, socket",
    "house": "",
    "at a desk": "",
}
# "Where there is none" is what a native writer says too.
_AVOIDED = re.compile(rf"(?<!there )\b({'|'.join(_INSTEAD)})\b", re.IGNORECASE)
# Messages that are quoted are the programs'.
_HELD = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/")
_PAGES = [page for page in pages() if str(page.relative_to(REPOSITORY)).startswith(_HELD)]
# Docstrings, comments and messages; "is none" there is mostly Python's "is None".
_SOURCES = sorted((REPOSITORY / "src/provision").rglob("*.py"))
_TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_LITERAL = re.compile(r"``.*?``", re.DOTALL)


@pytest.mark.parametrize("page", _PAGES, ids=[str(page.relative_to(REPOSITORY)) for page in _PAGES])
def test_a_page_avoids_these_words(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$|`[^`]*`|^### .*?$", "", page.read_text())
    found = [match[1].lower() for match in _AVOIDED.finditer(text)]
    assert {word: _INSTEAD[word] for word in found} == {}


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in _SOURCES}), ids=lambda path: path.name
)
def test_docstrings_comments_and_messages_avoid_these_words(folder: Path) -> None:
    found = {
        f"{path.name}:{token.start[0]}": f"{match[1]}: {_INSTEAD[match[1].lower()]}"
        for path in _SOURCES
        if path.parent == folder
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type in _TEXTS
        for match in _AVOIDED.finditer(_LITERAL.sub("", token.string))
        if match[1].lower() != "is none"
    }
    assert found == {}


def test_the_pages_are_there() -> None:
    names = {str(page.relative_to(REPOSITORY)) for page in _PAGES}
    assert {"README.md", "CHANGELOG.md", "docs/README.md", "docs/reference/provision.md"} <= names
    assert len(_PAGES) > 70
    assert len(_SOURCES) > 250
