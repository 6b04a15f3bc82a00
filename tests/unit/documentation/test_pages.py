"""Every link of every page leads somewhere, in the repository and on the site made from it."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from kit.cache import REPOSITORY
from kit.pages import anchors, foreign, pages, problems, stage

if TYPE_CHECKING:
    from pathlib import Path

_PAGES = pages()


@pytest.mark.parametrize("page", _PAGES, ids=[str(page.relative_to(REPOSITORY)) for page in _PAGES])
def test_every_relative_link_and_anchor_leads_somewhere(page: Path) -> None:
    assert problems(page) == []


@pytest.mark.parametrize("page", _PAGES, ids=[str(page.relative_to(REPOSITORY)) for page in _PAGES])
def test_every_block_of_code_ends(page: Path) -> None:
    fences = [line for line in page.read_text().splitlines() if line.lstrip().startswith("```")]
    assert len(fences) % 2 == 0


@pytest.mark.parametrize("page", _PAGES, ids=[str(page.relative_to(REPOSITORY)) for page in _PAGES])
def test_every_table_has_one_head_and_rows_of_its_width(page: Path) -> None:
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text())
    for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
        rows = table.splitlines()
        assert re.fullmatch(r"[|: -]+", rows[1]), rows[0]
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
        assert len(widths) == 1, rows[0]


def test_the_pages_are_those_of_the_repository() -> None:
    names = {str(page.relative_to(REPOSITORY)) for page in _PAGES}
    assert {"README.md", "docs/README.md", "hooks/README.md"} <= names
    assert not [name for name in names if name.startswith((".venv", "build", "hooks/target"))]


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One `two` (three)\n\n# One `two` (three)\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n\n[1](other.md#one-two-three) [2](other.md#one-two-three-1) [3](#here)\n"
        "[4](gone.md) [5](other.md#gone) [6](../outside.md) [7](https://example.org/x.md)\n"
    )
    assert problems(page, tmp_path) == [
        "gone.md leads to a file that is not there",
        "other.md#gone names an anchor that the page does not have",
        "../outside.md leads out of the repository",
    ]


def test_the_copy_for_the_site_has_the_same_links(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    stage(folder)
    copied = pages(folder)
    assert len(copied) == len(_PAGES)
    # A link to a folder is one on a forge only.
    assert {page.name: problems(page, folder) for page in copied if problems(page, folder)} == {}
    assert anchors(folder / "README.md") == anchors(REPOSITORY / "README.md")


def test_a_site_that_loads_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://example.org/">read on</a> <script src="_static/own.js"></script>'
        '<link rel="stylesheet" href="https://fonts.example/x.css"><img src="//img.example/x.png">'
    )
    (tmp_path / "a.css").write_text('@import "https://css.example/y.css"; a {b: url(own.svg)}')
    assert foreign(tmp_path) == [
        "a.css: https://css.example/y.css",
        "a.html: https://fonts.example/x.css",
        "a.html: //img.example/x.png",
    ]


_DIAGRAMS = sorted((REPOSITORY / "docs/diagrams").glob("*.dot"))


@pytest.mark.parametrize("text", _DIAGRAMS, ids=[text.stem for text in _DIAGRAMS])
def test_every_picture_is_made_from_its_text_and_shown(text: Path) -> None:
    picture = text.with_suffix(".svg")
    assert sha256(text.read_bytes()).hexdigest() in picture.read_text().splitlines()[0], (
        "make diagrams"
    )
    assert [page for page in _PAGES if f"diagrams/{picture.name})" in page.read_text()]
