"""The page of a fleet in a real browser: keyboard, filters, themes, paper, and no JavaScript."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, Page, expect

from kit.browser import LEAST_CONTRAST, chromium, contrasts, opened
from provision.catalogue import templates_dir
from provision.fleet.host_status import broken_host
from provision.fleet.report import FleetReport, make_report, render_page
from unit.fleet.documents import HOSTILE, NEXT, NOW, document, driver, failed_document, host, kernel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MANY = 1000


def _report() -> FleetReport:
    next_kernel = kernel(NEXT, role="next", state="pending", is_ready=False)
    hosts = [
        host("web1", document(driver(kernel(), next_kernel))),
        host(HOSTILE, failed_document()),
        broken_host("gone", "unreachable", f"no route {HOSTILE}", "Try it by hand."),
        host("old", document(time=0)),
        host("web2", failed_document("reboot-required")),
    ]
    return make_report(hosts, time=NOW, oldest=3600)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@contextmanager
def _opened(
    browser: Browser,
    folder: Path,
    report: FleetReport | None = None,
    **context: Any,  # noqa: ANN401 - options of a browser's context
) -> Iterator[Page]:
    file = folder / "fleet.html"
    file.write_text(render_page(report or _report(), templates_dir()))
    with opened(browser, file, **context) as page:
        yield page


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    with _opened(browser, tmp_path) as page:
        yield page


def test_what_a_host_says_is_text(page: Page) -> None:
    expect(page).to_have_title("Drivers of the fleet")
    assert page.locator("img").count() == 0
    page.get_by_role("link", name="<img").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("onerror")
    expect(page.get_by_role("dialog")).to_contain_text("does not compile")
    expect(page).to_have_title("Drivers of the fleet")


def _focused(page: Page) -> int:
    """The row of the table that has the focus."""
    place: int = page.evaluate(
        "() => { const row = document.activeElement.closest('#fleet tbody tr');"
        " return row ? row.sectionRowIndex : -1; }"
    )
    return place


def test_the_keyboard_reaches_and_opens_every_host(page: Page) -> None:
    page.locator("#theme").focus()
    page.keyboard.press("Tab")
    assert _focused(page) == 0
    for key, place in [("ArrowDown", 1), ("End", 5), ("ArrowDown", 5), ("Home", 0), ("ArrowUp", 0)]:
        page.keyboard.press(key)
        assert _focused(page) == place, key
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    for words in ("gone", "unreachable", "no route", "Try it by hand."):
        expect(dialog).to_contain_text(words)
    expect(dialog).to_have_accessible_name("gone")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert _focused(page) == 1
    # One stop of the Tab key, however many hosts there are.
    page.keyboard.press("Tab")
    assert _focused(page) == -1


def test_filters_leave_what_matches(page: Page) -> None:
    shown, rows = page.locator("#shown"), page.locator("#fleet tbody tr:visible")
    expect(shown).to_have_text("6 of 6 rows match")
    for label, option, count in (
        ("State", "stale", 1),
        ("State", "reboot-required", 1),
        ("Kernel", NEXT, 1),
        ("Driver", "nvidia", 5),
    ):
        page.get_by_label(label).select_option(option)
        expect(rows).to_have_count(count)
        page.get_by_role("button", name="Show all").click()
        expect(shown).to_have_text("6 of 6 rows match")
    page.get_by_label("Text").fill("WEB1 next")
    expect(rows).to_have_count(1)
    page.get_by_label("Text").fill("nothing has this")
    expect(shown).to_have_text("0 of 6 rows match")


def test_screen_readers_get_heads_and_words(page: Page) -> None:
    table = page.get_by_role("table", name="Hosts, drivers and kernels, the worst first")
    assert table.get_by_role("columnheader").count() == 7
    assert table.get_by_role("rowheader", name="web1").count() == 2
    expect(table.get_by_role("cell", name="unreachable")).to_have_count(1)
    assert page.get_by_role("search").get_by_role("combobox").count() == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_systems_theme_until_the_button_says_otherwise(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    with _opened(browser, tmp_path, color_scheme=scheme) as page:
        button = page.locator("#theme")
        expect(button).to_have_attribute("aria-pressed", str(scheme == "dark").lower())
        for _ in range(2):
            found = contrasts(page, "td.state, .mark")
            assert min(contrast for _state, contrast in found) >= LEAST_CONTRAST, found
            button.click()


def test_on_paper_there_are_the_hosts_that_need_care(page: Page, tmp_path: Path) -> None:
    page.emulate_media(media="print")
    expect(page.locator("#filters")).to_be_hidden()
    expect(page.locator("#groups")).to_be_visible()
    assert page.locator("#fleet tbody tr:visible").count() == 4
    assert page.locator("article:visible").count() == 4
    file = tmp_path / "fleet.pdf"
    page.pdf(path=file)
    assert file.read_bytes().startswith(b"%PDF-")


def test_without_javascript_it_is_a_plain_table_with_all_details(
    browser: Browser, tmp_path: Path
) -> None:
    with _opened(browser, tmp_path, java_script_enabled=False) as page:
        expect(page.locator("#filters")).to_be_hidden()
        assert page.locator("article:visible").count() == 5
        page.get_by_role("link", name="gone").first.click()
        identity = page.url.partition("#")[2]
        expect(page.locator(f"#{identity}")).to_be_in_viewport()


def test_on_a_small_screen_only_the_tables_scroll(browser: Browser, tmp_path: Path) -> None:
    with _opened(browser, tmp_path, viewport={"width": 360, "height": 640}) as page:
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360


def test_a_thousand_hosts_are_filtered_at_once(browser: Browser, tmp_path: Path) -> None:
    kernels = (kernel(), kernel(NEXT, role="next", state="failed", reason="does not compile"))
    hosts = [host(f"web{number}", document(driver(*kernels))) for number in range(_MANY)]
    begun = time.monotonic()
    with _opened(browser, tmp_path, make_report(hosts, time=NOW)) as page:
        expect(page.locator("#shown")).to_have_text("2000 of 2000 rows match")
        taken = page.evaluate(
            """() => {
              const text = document.getElementById("text"), begun = performance.now();
              text.value = "web77 next";
              text.dispatchEvent(new Event("input", { bubbles: true }));
              return performance.now() - begun;
            }"""
        )
        expect(page.locator("#shown")).to_have_text("11 of 2000 rows match")
    # Generous: what is meant is that it isn't quadratic.
    assert taken < 2000
    assert time.monotonic() - begun < 60
