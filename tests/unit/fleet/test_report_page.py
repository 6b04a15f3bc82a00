"""The page of a fleet: what is in it, that hosts' words are text, and that it is made at once."""

from __future__ import annotations

import time
from html.parser import HTMLParser

from provision.catalogue import templates_dir
from provision.fleet.host_status import broken_host
from provision.fleet.report import FleetReport, make_report, render_page
from unit.fleet.documents import HOSTILE, NEXT, NOW, document, driver, failed_document, host, kernel

_MANY = 1000
_WITHIN_S = 2.0


class _Elements(HTMLParser):
    """The elements of a page, by name."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.identities: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        found = dict(attrs)
        if "id" in found:
            self.identities.append(found["id"] or "")
        if tag == "a":
            self.links.append(found["href"] or "")


def _report() -> FleetReport:
    hosts = [
        host("web1"),
        host(HOSTILE, failed_document()),
        broken_host("gone", "unreachable", HOSTILE, HOSTILE),
        host("old", document(time=0)),
        host("web2", document(driver(kernel(version=HOSTILE), notes=[HOSTILE]))),
    ]
    return make_report(hosts, time=NOW, oldest=3600)


def test_what_hosts_say_is_text() -> None:
    page = render_page(_report(), templates_dir())
    found = _Elements(page)
    assert found.names.count("script") == 1
    assert "img" not in found.names
    assert HOSTILE not in page
    assert "&lt;img src=x" in page


def test_every_link_leads_to_a_host_and_every_identity_is_there_once() -> None:
    found = _Elements(render_page(_report(), templates_dir()))
    assert len(set(found.identities)) == len(found.identities)
    assert {link.removeprefix("#") for link in found.links} <= set(found.identities)
    assert found.names.count("article") == 5


def test_states_are_words_and_age_is_said() -> None:
    page = render_page(_report(), templates_dir())
    assert page.count("host needs-care") == 3
    for words in ("5 hosts", "1 unreachable", "1 stale", "never", "1970-01-01 00:00 UTC (stale)"):
        assert words in page, words


def test_a_thousand_hosts_are_rendered_at_once() -> None:
    kernels = (kernel(), kernel(NEXT, role="next", state="failed", reason="does not compile"))
    hosts = [host(f"web{number}", document(driver(*kernels))) for number in range(_MANY)]
    # Of this process only: other processes of a busy machine don't count.
    begun = time.process_time()
    page = render_page(make_report(hosts, time=NOW), templates_dir())
    assert time.process_time() - begun < _WITHIN_S
    assert page.count("<article") == _MANY
