"""A fleet as one HTML page. Whatever hosts say of themselves is text there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from provision.fleet.report import Report
from provision.fleet.status import STATES, WELL, DriverRow, Host, KernelRow, is_out
from provision.pipeline.html_page import render_html, shown_time

TEMPLATE = "fleet/page.html.j2"
_STYLES = ("matrix/page.css", "fleet/page.css")
_SCRIPTS = ("page/shared.js", "fleet/page.js")
# The looks that the style sheet has, by state; all that needs care looks failed.
_LOOKS = {"ready": "built", "pending": "not-supported", "reboot-required": "not-built"}


def render_page(report: Report, templates: Path, *, title: str = "Drivers of the fleet") -> str:
    """Return the page of a report.

    Args:
        report: What it shows.
        templates: Folder of the templates.
        title: Its heading.

    Raises:
        NotFoundError: The folder lacks its templates.
    """
    identities = {id(host): f"host-{number}" for number, host in enumerate(report.hosts)}
    rows = [
        _row(report, identities[id(host)], host, driver, kernel)
        for host, driver, kernel in report.rows()
    ]
    values = {
        "title": title,
        "counts": [(*_look(state), count) for state, count in report.counts.items()],
        "stale": len(report.stale),
        "hosts": len(report.hosts),
        "groups": [
            {"group": group, "counts": [(*_look(s), n) for s, n in group.counts.items()]}
            for group in report.groups()
        ],
        "drivers": sorted({row["driver"] for row in rows if row["driver"]}),
        "kernels": sorted({row["kernel"] for row in rows if row["kernel"]}),
        "states": [(state, _look(state)[2]) for state in dict.fromkeys(r["state"] for r in rows)],
        "rows": rows,
        "details": [_detail(report, identities[id(host)], host) for host in report.hosts],
    }
    return render_html(
        templates, TEMPLATE, styles=_STYLES, scripts=_SCRIPTS, time=report.time, values=values
    )


def _look(state: str) -> tuple[str, str, str]:
    """Return the look, the symbol and the words of a state."""
    symbol, words = STATES.get(state, ("?", state))
    return _LOOKS.get(state, "failed"), symbol, words


def _row(
    report: Report,
    identity: str,
    host: Host,
    driver: DriverRow | None,
    kernel: KernelRow | None,
) -> dict[str, Any]:
    state = kernel.state if kernel else driver.state if driver else host.state
    look, symbol, words = _look(state)
    return {
        "id": identity,
        "host": host.name,
        "driver": driver.name if driver else "",
        "kernel": kernel.release if kernel else "",
        "role": kernel.role if kernel else "",
        "version": (kernel.version if kernel else None) or "",
        "state": state,
        "look": look,
        "symbol": symbol,
        "words": words,
        "seen": _seen(host),
        "is_stale": report.is_stale(host),
        "is_out": kernel is not None and is_out(kernel),
        "is_well": state in WELL
        and not report.is_stale(host)
        and not (kernel is not None and is_out(kernel)),
    }


def _detail(report: Report, identity: str, host: Host) -> dict[str, Any]:
    look, symbol, words = _look(host.state)
    return {
        "id": identity,
        "host": host,
        "look": look,
        "symbol": symbol,
        "words": words,
        "seen": _seen(host),
        "is_stale": report.is_stale(host),
        "needs_care": report.needs_care(host),
        "kernels": [
            (driver, kernel, *_look(kernel.state))
            for driver in host.drivers
            for kernel in driver.kernels
        ],
    }


def _seen(host: Host) -> str:
    return "never" if host.time is None else shown_time(host.time)
