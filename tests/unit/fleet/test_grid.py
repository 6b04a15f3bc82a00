"""The page of a matrix: what is in it, and what hostile output of a build can't do to it."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from provision.build.output import SourceError
from provision.files import templates_dir
from provision.fleet import Cell, Column, Row
from provision.fleet.results import MatrixReport, Result, render_page, result_of

ROW, OTHER = Row("demo", "2.0", "open"), Row("demo", "1.2", "open")
COLUMNS = (
    Column("debian:12", "6.1.0-50-amd64"),
    Column("debian:12", "6.1.0-47-amd64"),
    Column("debian:13", "6.12.9-amd64"),
)


class _Page(HTMLParser):
    """What a browser makes of a page, roughly.

    Attributes:
        elements: Names with their attributes.
        text: All text that is no style or script.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside not in {"style", "script"}:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._inside = ""

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def failed(cell: Cell, text: str = "no member named 'x'") -> Result:
    return result_of(
        cell,
        "failed",
        reason="compile",
        phase="build",
        message=f"demo does not compile: {text}",
        resolution="patch it",
        first_error=SourceError(file="a.c", line=7, text=text, excerpt=(f" 7 | {text}",)),
        errors=3,
        instruction="RUN make",
        excerpt=(f"CC a.o {text}",),
        log="/var/cache/provision/logs/demo.log",
    )


def page(*results: Result) -> str:
    report = MatrixReport((ROW, OTHER), COLUMNS, {result.cell: result for result in results})
    return render_page(report, templates_dir(), time=0)


def cell(row: Row = ROW, column: Column = COLUMNS[0]) -> Cell:
    return Cell(row, column)


def test_every_cell_has_colour_symbol_and_words() -> None:
    read = _Page(
        page(
            failed(cell()),
            result_of(cell(OTHER), "built", size=1_500_000, seconds={"total": 3.25}),
            result_of(cell(ROW, COLUMNS[2]), "not-supported", message="too new"),
        )
    )
    cells = read.of("td")
    assert [one["class"] for one in cells] == [
        "failed",
        "not-built",
        "not-supported",
        "built",
        "not-built",
        "not-built",
    ]
    for words in ("✗ failed", "✓ built", "⊘ not supported", "· not built yet", "1.5 MB", "3.2 s"):
        symbol, _, text = words.partition(" ")
        assert symbol in read.text
        assert text in read.text
    for words in (
        "a.c:7",
        "RUN make",
        "patch it",
        "demo.log",
        "3 errors in all",
        "does not compile",
    ):
        assert words in read.text, words


def test_nothing_is_loaded_and_only_our_own_script_runs() -> None:
    text = page(failed(cell()))
    read = _Page(text)
    policy = next(
        one["content"]
        for one in read.of("meta")
        if one.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy
    assert "default-src 'none'" in policy
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    outside = {"link", "img", "iframe", "object", "embed", "video", "audio", "base"}
    assert not outside & {name for name, _ in read.elements}
    assert not re.search(r"https?://|url\(|@import", text)
    assert not any(name.startswith("on") for _, one in read.elements for name in one)


_HOSTILE = st.text(st.sampled_from("<>\"'&/ax=`{}%\n\0é"), max_size=30) | st.sampled_from(
    [
        "</script><script>alert(1)</script>",
        "</style><img src=x onerror=alert(1)>",
        '" onmouseover="alert(1)',
        "{{ 7 * 7 }}{% raw %}",
        "<!--",
        "</table></dialog>",
    ]
)


@given(_HOSTILE)
def test_what_a_build_prints_is_only_text(text: str) -> None:
    plain, hostile = _Page(page(failed(cell(), "x"))), _Page(page(failed(cell(), text)))
    # The same elements with the same attributes, and nothing more.
    assert [name for name, _ in hostile.elements] == [name for name, _ in plain.elements]
    assert [set(one) for _, one in hostile.elements] == [set(one) for _, one in plain.elements]
