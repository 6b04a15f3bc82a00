"""Pages: every link leads somewhere, and what they name is there."""

from __future__ import annotations

import re
from hashlib import sha256
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from kit.cache import REPOSITORY
from kit.pages import anchors, foreign, pages, problems, stage

_PAGES = pages()


@pytest.mark.parametrize("page", _PAGES, ids=[str(page.relative_to(REPOSITORY)) for page in _PAGES])
def test_every_relative_link_and_anchor_leads_somewhere(page: Path) -> None:
    assert problems(page) == []


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


_TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text()
_EXAMPLES = _TEXT.split("## Changes, and")[1].split("\n## ")[0]
_SECTIONS = dict(re.findall(r"(?ms)^### (.+?)\n(.*?)(?=^### |\Z)", _EXAMPLES))
# A word with a slash or an ending, and nothing that a reader fills in.
_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:md|toml|yml))`")


def _files(text: str) -> list[str]:
    return [name for name in _FILE.findall(text) if "NNNN" not in name and name != "driver.toml"]


@pytest.mark.parametrize("title", _SECTIONS)
def test_the_files_of_an_example_are_there(title: str) -> None:
    named = [name for name in _files(_SECTIONS[title]) if "/" in name]
    assert len(named) > 4
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_there_are_examples() -> None:
    assert len(_SECTIONS) > 4


def test_the_map_names_folders_that_are_there() -> None:
    table = _TEXT.split("## Map of the tree")[1].split("\n## ")[0]
    folders = re.findall(r"(?m)^\| `([^`]+)/`", table)
    assert len(folders) > 7
    assert [name for name in folders if not (REPOSITORY / name).is_dir()] == []


def test_workflows_run_what_the_repository_says() -> None:
    runs: list[str] = []
    for file in (REPOSITORY / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(file.read_text())["jobs"].values()
        runs += [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"(?m)^([a-z-]+):", (REPOSITORY / "Makefile").read_text()))
    made = re.findall(r"(?m)\bmake ([a-z -]+)$", "\n".join(runs))
    assert (
        {"check", "dist", "test"} <= {word for words in made for word in words.split()} <= targets
    )
    assert ".ci/run" in runs


def test_help_lists_every_target() -> None:
    made = (REPOSITORY / "Makefile").read_text()
    (shown,) = re.findall(r"(?ms)^help:.*?(?=^\w)", made)
    targets = set(re.findall(r"(?m)^([a-z-]+):", made))
    said = set(re.findall(r"(?m)^([a-z-]+):.*?## ", made)) | set(re.findall(r"[a-z-]+", shown))
    steps = {"demo-setup", "check-setup", "first-setup", "all-setup", "nightly-setup"}
    assert targets - said - steps == set()


THREATS = REPOSITORY / "docs/explanation/threat-model.md"
SUPPORT = REPOSITORY / "docs/reference/support.md"
_NAMED = re.compile(r"`((?:hooks/)?(?:tests|src)/[\w/]+\.(?:rs|py))::(\w+)`")
NAMED = sorted({*_NAMED.findall(THREATS.read_text()), *_NAMED.findall(SUPPORT.read_text())})


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_promise_is_held_by_a_test_that_exists(file: str, test: str) -> None:
    text = (REPOSITORY / file).read_text()
    assert re.search(rf"^\s*(?:fn|def) {test}\(", text, re.MULTILINE)


def test_every_promise_names_a_test() -> None:
    lines = THREATS.read_text().splitlines()
    rows: list[str] = []
    holds = False
    for line in lines:
        holds = line.endswith("| held by |") or (holds and line.startswith("|"))
        if holds and not line.endswith(("| held by |", "|---|")):
            rows.append(line)
    assert len(rows) > 60
    assert [row for row in rows if not _NAMED.search(row)] == []


def test_unsafe_code_is_in_two_modules() -> None:
    crate = REPOSITORY / "hooks"
    assert 'unsafe_code = "deny"' in (crate / "Cargo.toml").read_text()
    allowed = {
        str(path.relative_to(crate / "src"))
        for path in crate.glob("src/**/*.rs")
        if path.name != "tests.rs" and "allow(unsafe_code)" in path.read_text()
    }
    assert allowed == {"apply/namespace.rs", "apply/namespace/cgroup.rs"}


def test_what_is_real_names_a_test() -> None:
    lines = SUPPORT.read_text().splitlines()
    heads = [number for number, line in enumerate(lines) if "| real | tests of *real* |" in line]
    assert len(heads) > 3
    for head in heads:
        for row in takewhile(lambda line: line.startswith("|"), lines[head + 2 :]):
            _, name, real, tests, *_ = (cell.strip() for cell in row.split("|"))
            assert bool(real) == bool(_NAMED.search(tests)), name
