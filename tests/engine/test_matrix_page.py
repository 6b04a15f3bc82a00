"""The page of a matrix in a real browser: keyboard, filters, themes, paper, and no JavaScript."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from kit.probe import find_program, need_programs
from provision.build.output import SourceError
from provision.files import templates_dir
from provision.fleet import Cell, Column, Row
from provision.fleet.results import MatrixReport, render_page, result_of

# https://www.w3.org/TR/WCAG22/#contrast-minimum
_LEAST_CONTRAST = 4.5
_LIMIT_MS = 20_000


def contrasts(page: Page, selector: str) -> list[tuple[str, float]]:
    """The contrast of text and background of the page and of elements, with their states."""
    found: list[tuple[str, float]] = page.evaluate(
        """(selector) => {
          const light = (text) => {
            const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((n) => n / 255)
              .map((n) => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const of = (element) => {
            const style = getComputedStyle(element);
            const both = [light(style.color), light(style.backgroundColor)].sort((a, b) => b - a);
            return (both[0] + 0.05) / (both[1] + 0.05);
          };
          const elements = [...document.querySelectorAll(selector)];
          const states = elements.map((one) => [one.dataset.state ?? "", of(one)]);
          return [["page", of(document.body)], ...states];
        }""",
        selector,
    )
    return found


ROWS = (Row("demo", "2.0", "open"), Row("demo", "1.2", "open"), Row("other", "7", "only"))
COLUMNS = (
    Column("debian:12", "6.1.0-50-amd64"),
    Column("debian:12", "6.1.0-47-amd64"),
    Column("debian:13", "6.12.9-amd64"),
)
# What a hostile source could have the compiler print.
HOSTILE = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"


def _report() -> MatrixReport:
    failed = result_of(
        Cell(ROWS[0], COLUMNS[0]),
        "failed",
        reason="compile",
        phase="build",
        message=f"demo does not compile {HOSTILE}",
        resolution="Add a patch.",
        first_error=SourceError(file="/source/a.c", line=7, text=f"no member {HOSTILE}"),
        errors=2,
        excerpt=("CC a.o", HOSTILE),
        log="/var/cache/provision/logs/demo.log",
    )
    built = [result_of(Cell(row, COLUMNS[1]), "built", size=1000) for row in ROWS]
    refused = result_of(Cell(ROWS[1], COLUMNS[2]), "not-supported", message="too new a kernel")
    known = [failed, *built, refused]
    return MatrixReport(ROWS, COLUMNS, {result.cell: result for result in known})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need_programs("chromium")
    expect.set_options(timeout=_LIMIT_MS)
    with sync_playwright() as playwright:
        # Its own sandbox does not work for root.
        browser = playwright.chromium.launch(
            executable_path=find_program("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@contextmanager
def _opened(browser: Browser, folder: Path, **context: Any) -> Iterator[Page]:  # noqa: ANN401 - options of a browser's context
    """Open the page; it may load nothing else, and nothing in it may fail."""
    file = folder / "matrix.html"
    file.write_text(render_page(_report(), templates_dir(), time=0))
    tab = browser.new_context(**context)
    page = tab.new_page()
    page.set_default_timeout(_LIMIT_MS)
    requested: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text))
    page.goto(file.as_uri())
    yield page
    assert requested == [file.as_uri()]
    assert complaints == []
    tab.close()


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    with _opened(browser, tmp_path) as page:
        yield page


def _focused(page: Page) -> str:
    """The row and the column of the cell that has the focus."""
    place: str = page.evaluate(
        """() => {
          const cell = document.activeElement.closest("td");
          return cell && `${cell.parentElement.rowIndex - 2},${cell.cellIndex - 1}`;
        }"""
    )
    return place


def test_what_a_build_printed_is_text(page: Page) -> None:
    expect(page).to_have_title("Compatibility of drivers and kernels")
    assert page.locator("img").count() == 0
    page.get_by_role("link", name="failed").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("onerror")
    expect(page).to_have_title("Compatibility of drivers and kernels")


def test_the_policy_lets_no_other_script_run(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "matrix.html"
    text = render_page(_report(), templates_dir(), time=0)
    file.write_text(text.replace("</main>", "<script>document.title='hit'</script></main>"))
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda one: said.append(one.text))
    page.goto(file.as_uri())
    expect(page).to_have_title("Compatibility of drivers and kernels")
    assert any("Content Security Policy" in line for line in said)
    page.close()


def test_the_keyboard_reaches_and_opens_every_cell(page: Page) -> None:
    page.locator("#theme").focus()
    page.keyboard.press("Tab")
    assert _focused(page) == "0,0"
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    steps = [
        ("ArrowRight", "0,1"),
        ("ArrowDown", "1,1"),
        ("End", "1,2"),
        ("ArrowRight", "1,2"),
        ("PageDown", "2,2"),
        ("Home", "2,0"),
        ("ArrowLeft", "2,0"),
        ("ArrowUp", "1,0"),
        ("PageUp", "0,0"),
    ]
    for key, place in steps:
        page.keyboard.press(key)
        assert _focused(page) == place, key
    dialog = page.get_by_role("dialog")
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    for words in (
        "/source/a.c:7",
        "Add a patch.",
        "2 errors in all",
        "does not compile",
        "demo.log",
    ):
        expect(dialog).to_contain_text(words)
    expect(dialog).to_have_accessible_name(re.compile("demo 2.0.*6.1.0-50-amd64"))
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert _focused(page) == "0,0"
    # One stop of the Tab key, however many cells there are.
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.closest('#matrix')") is None


def test_filters_leave_what_matches(page: Page) -> None:
    shown, rows = page.locator("#shown"), page.locator("#matrix tbody tr:visible")
    expect(shown).to_have_text("9 of 9 cells match")
    page.get_by_label("Driver").select_option("demo")
    expect(rows).to_have_count(2)
    page.get_by_label("Distro").select_option("debian:13")
    expect(page.locator("#matrix .kernel:visible")).to_have_count(1)
    expect(page.locator("#matrix th[scope=colgroup]:visible")).to_have_count(1)
    page.get_by_role("button", name="Show all").click()
    expect(shown).to_have_text("9 of 9 cells match")
    page.get_by_label("State").select_option("failed")
    expect(shown).to_have_text("1 of 9 cells match")
    expect(rows).to_have_count(1)
    expect(page.locator("#matrix td:visible")).to_have_count(1)
    page.get_by_role("button", name="Show all").click()
    page.get_by_label("Text").fill("other 6.12")
    expect(shown).to_have_text("1 of 9 cells match")
    expect(rows).to_contain_text("other")
    page.get_by_label("Text").fill("nothing has this")
    expect(shown).to_have_text("0 of 9 cells match")
    expect(rows).to_have_count(0)


def test_screen_readers_get_a_grid_with_heads_and_words(page: Page) -> None:
    grid = page.get_by_role("grid", name="Drivers by row, kernels by column")
    expect(grid).to_be_visible()
    assert grid.get_by_role("rowheader").count() == 3
    expect(grid.get_by_role("columnheader", name="6.12.9-amd64")).to_be_visible()
    expect(grid.get_by_role("gridcell", name="not supported")).to_have_count(1)
    expect(grid.get_by_role("gridcell", name="not built yet")).to_have_count(4)
    assert page.get_by_role("search").get_by_role("combobox").count() == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_systems_theme_until_the_button_says_otherwise(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    def background(page: Page) -> str:
        found: str = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        return found

    with _opened(browser, tmp_path, color_scheme=scheme) as page:
        before, button = background(page), page.locator("#theme")
        assert before == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}[scheme]
        expect(button).to_have_attribute("aria-pressed", str(scheme == "dark").lower())
        for _ in range(2):
            found = dict(contrasts(page, "#matrix td"))
            assert set(found) == {"page", "built", "failed", "not-supported", "not-built"}
            assert min(found.values()) >= _LEAST_CONTRAST, found
            button.click()
        assert background(page) == before
        button.click()
        assert background(page) != before


def test_on_paper_there_are_the_table_and_the_failures(page: Page, tmp_path: Path) -> None:
    page.emulate_media(media="print")
    expect(page.locator("#matrix")).to_be_visible()
    expect(page.locator("#filters")).to_be_hidden()
    expect(page.locator("article.failed")).to_be_visible()
    expect(page.locator("article.built").first).to_be_hidden()
    file = tmp_path / "matrix.pdf"
    page.pdf(path=file)
    assert file.read_bytes().startswith(b"%PDF-")


def test_without_javascript_it_is_a_plain_table_with_all_details(
    browser: Browser, tmp_path: Path
) -> None:
    with _opened(browser, tmp_path, java_script_enabled=False) as page:
        expect(page.locator("#filters")).to_be_hidden()
        expect(page.locator("#help")).to_be_hidden()
        expect(page.get_by_role("table")).to_be_visible()
        for article in page.locator("article").all():
            expect(article).to_be_visible()
        page.get_by_role("link", name="failed").click()
        identity = page.url.partition("#")[2]
        expect(page.locator(f"#{identity}")).to_be_in_viewport()
        expect(page.locator(f"#{identity}")).to_contain_text("/source/a.c:7")


def test_on_a_small_screen_only_the_table_scrolls(browser: Browser, tmp_path: Path) -> None:
    with _opened(browser, tmp_path, viewport={"width": 360, "height": 640}) as page:
        wide = page.evaluate("() => document.documentElement.scrollWidth")
        assert wide <= 360
        # The driver's name stays where it is.
        head = page.locator("#matrix tbody th").first
        before = head.bounding_box()
        scroll = page.locator(".scroll")
        scroll.evaluate("(element) => element.scrollTo(500, 0)")
        after = head.bounding_box()
        assert scroll.evaluate("(element) => element.scrollLeft") > 0
        assert before
        assert after
        # It sticks to the left end of the part that scrolls.
        edge = scroll.bounding_box()
        assert edge
        assert after["x"] == pytest.approx(edge["x"], abs=2)
