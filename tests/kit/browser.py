"""Pages in a real browser: opened, watched for requests and errors, and measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from kit.probe import find_program, need_programs

# https://www.w3.org/TR/WCAG22/#contrast-minimum
LEAST_CONTRAST = 4.5
_LIMIT_MS = 20_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, which ends with the block."""
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
def opened(browser: Browser, file: Path, **context: Any) -> Iterator[Page]:  # noqa: ANN401 - options of a browser's context
    """Open a page; it may load nothing else, and nothing in it may fail."""
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
