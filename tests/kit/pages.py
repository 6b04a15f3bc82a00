"""The repository's Markdown pages: their links and anchors, and a copy that a site is made from.

Anchors are GitHub's, which the site (`.ci/site`) makes too. `make docs` runs this module:
`python -m kit.pages stage DIR` writes the copy, with every page at its own path and each file that
a page links to, so that relative links hold; `check DIR` looks at the site that came out.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from kit.cache import REPOSITORY

# What `make` makes, and what is not of this repository.
_LEFT_OUT = {
    ".git", ".venv", "build", "node_modules", "shared", "target", "__pycache__", ".pytest_cache",
    ".mypy_cache", ".ruff_cache", ".hypothesis",
}  # fmt: skip
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
# No link inside of a block or a span of code is one.
_FENCE = re.compile(r"(?ms)^( *)(`{3,}|~{3,})([^\n`]*)\n(.*?)^ *\2[`~]*[ \t]*$")
_SPAN = re.compile(r"(?s)(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_REFERENCE = re.compile(r"(?m)^ {0,3}\[[^\]^]+\]:\s*<?(\S+?)>?\s*$")
_HEADING = re.compile(r"(?m)^ {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*$")
# What a browser would load from another host: everything but the links that a reader follows.
_LOADED = re.compile(
    r"<(?:link|script|img|iframe|source)\b[^>]*\b(?:href|src)=\"((?:https?:)?//[^\"]+)"
    r"|(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')]+)"
)
_HTML_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def pages(folder: Path = REPOSITORY) -> list[Path]:
    """Every Markdown page below `folder`, sorted; caches and build products are left out."""
    found: list[Path] = []
    for path in folder.iterdir():
        if path.name in _LEFT_OUT or path.name.endswith(".egg-info"):
            continue
        if path.is_dir() and not path.is_symlink():
            found += pages(path)
        elif path.suffix == ".md":
            found.append(path)
    return sorted(found)


def blocks(text: str) -> list[tuple[str, str]]:
    """The blocks of code in a page, as language (empty where it names none) and content."""
    return [(match[3].strip(), match[4]) for match in _FENCE.finditer(text)]


def snippet(page: str, title: str, replace: Mapping[str, str] | None = None) -> str:
    """The block of code of `docs/PAGE` that follows the first line with `title` in it.

    The installed program's paths become those of the build, and then the words of `replace` what
    they stand for: so tests run what users are asked to type.
    """
    _, _, after = (REPOSITORY / "docs" / page).read_text().partition(title)
    found = next((content for _, content in blocks(after)), None)
    if found is None:
        raise LookupError(f"docs/{page} has no block of code after {title!r}")
    found = found.replace("/usr/bin/oci-decorator", f"{REPOSITORY}/build/oci-decorator")
    for word, value in (replace or {}).items():
        if word not in found:
            raise LookupError(f"docs/{page}: {word!r} is not in the block after {title!r}")
        found = found.replace(word, value)
    return found


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, row by row, without its head."""
    section = re.split(rf"(?m)^#+ {re.escape(heading)}$", text)[1]
    lines = re.search(r"(?m)(?:^\|.*\n)+", _FENCE.sub("", section))
    assert lines, heading
    return [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in lines[0].splitlines()[2:]
    ]


def links(text: str) -> list[str]:
    """The targets of a page's links and pictures, in their order, addresses of others too."""
    prose = _SPAN.sub("", _FENCE.sub("", text))
    return [*_LINK.findall(prose), *_REFERENCE.findall(prose)]


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a link to a place of `page` may say behind the `#`, by GitHub's rule."""
    text = _FENCE.sub("", page.read_text())
    found: set[str] = set(_HTML_ANCHOR.findall(text))
    for title in _HEADING.findall(text):
        slug = _slug(title)
        name, number = slug, 0
        while name in found:
            number += 1
            name = f"{slug}-{number}"
        found.add(name)
    return frozenset(found)


def problems(page: Path, root: Path = REPOSITORY) -> list[str]:
    """The links of `page` that lead nowhere or out of `root`, each with what is wrong."""
    found = []
    for link in links(page.read_text()):
        if _ELSEWHERE.match(link) or link.startswith("//"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        if not target.is_relative_to(root):
            found.append(f"{link} leads out of the repository")
        elif not target.exists():
            found.append(f"{link} leads to a file that is not there")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            found.append(f"{link} names an anchor that the page does not have")
    return found


def stage(folder: Path) -> None:
    """Copy the pages, and what they link to, into `folder`, which is made or emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    for page in pages():
        wanted = {page}
        for link in links(page.read_text()):
            target = (page.parent / unquote(link.partition("#")[0])).resolve()
            if not _ELSEWHERE.match(link) and target.is_file():
                wanted.add(target)
        for file in wanted:
            copy = folder / file.relative_to(REPOSITORY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def foreign(site: Path) -> list[str]:
    """What files of a site load from other hosts, as `FILE: ADDRESS`."""
    return [
        f"{file.relative_to(site)}: {match[1] or match[2]}"
        for file in sorted(site.rglob("*"))
        if file.suffix in {".html", ".css"}
        for match in _LOADED.finditer(file.read_text())
    ]


def _slug(title: str) -> str:
    """As GitHub's renderer names a heading: lower case, without marks, blanks as hyphens."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


if __name__ == "__main__":
    if sys.argv[1] == "stage":
        stage(Path(sys.argv[2]))
    else:
        sys.exit("\n".join(foreign(Path(sys.argv[2]))) or 0)
