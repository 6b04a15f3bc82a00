"""The report of a fleet at one moment: counts, filters, the JSON document and the HTML page.

Data from a host is only text on the page, never markup.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from provision.errors import ExitCode
from provision.fleet.host_status import (
    NOT_SEEN,
    STATES,
    WELL,
    DriverRow,
    Host,
    KernelRow,
    is_out,
    rank,
    worst,
)
from provision.pipeline.html_page import PageFiles, render_html, shown_time

SCHEMA = 1
_DIGITS = re.compile(r"(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Group:
    """Hosts that have the same driver for the same kernel.

    Attributes:
        driver: The driver.
        kernel: The kernel's release.
        role: ``running`` or ``next``.
        counts: Numbers of hosts by state, the worst first.
        versions: The driver's versions on these hosts.
    """

    driver: str
    kernel: str
    role: str
    counts: dict[str, int]
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The states of the hosts of a fleet.

    Attributes:
        hosts: The hosts, the worst first, then by name.
        time: Unix time of the query.
        oldest: Seconds after which a status is stale; 0: never.
    """

    hosts: tuple[Host, ...]
    time: int
    oldest: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """The number of hosts by state, the worst first."""
        return _counted(host.state for host in self.hosts)

    @property
    def stale(self) -> tuple[Host, ...]:
        """Hosts whose status is stale."""
        return tuple(host for host in self.hosts if self.is_stale(host))

    @property
    def exit_code(self) -> ExitCode:
        """0 without problems; 4 if some hosts need a reboot and have no other problem; else 1."""
        states = {host.state for host in self.hosts if self.needs_care(host)}
        if states - {"reboot-required"} or self.stale:
            return ExitCode.FAILED
        return ExitCode.IN_USE if states else ExitCode.DONE

    def is_stale(self, host: Host) -> bool:
        """Return whether the status of a host is too old or has no time."""
        if not self.oldest:
            return False
        if host.time is None:
            return host.state not in NOT_SEEN
        # A clock that is far ahead would hide that the agent has stopped.
        return abs(self.time - host.time) > self.oldest

    def needs_care(self, host: Host) -> bool:
        """Return whether a host needs the admin's attention."""
        # A pending driver needs no attention, unless the running kernel lacks it now.
        is_well = host.state in WELL and not any(
            is_out(kernel) for driver in host.drivers for kernel in driver.kernels
        )
        return not is_well or self.is_stale(host)

    def groups(self) -> list[Group]:
        """Return the drivers and kernels of the fleet with their numbers of hosts, by name."""
        found: dict[tuple[str, str, str], list[KernelRow]] = {}
        for _, driver, kernel in self.rows():
            if driver is not None and kernel is not None:
                found.setdefault((driver.name, kernel.release, kernel.role), []).append(kernel)
        return [
            Group(
                *key,
                counts=_counted(kernel.state for kernel in kernels),
                versions=tuple(sorted({kernel.version for kernel in kernels if kernel.version})),
            )
            for key, kernels in sorted(found.items(), key=lambda item: _natural(" ".join(item[0])))
        ]

    def rows(self) -> Iterator[tuple[Host, DriverRow | None, KernelRow | None]]:
        """Yield a row for each host, driver and kernel; hosts without drivers have one row."""
        for host in self.hosts:
            if not host.drivers:
                yield host, None, None
            for driver in host.drivers:
                if not driver.kernels:
                    yield host, driver, None
                for kernel in driver.kernels:
                    yield host, driver, kernel

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        hosts = [{**asdict(host), "is_stale": self.is_stale(host)} for host in self.hosts]
        for host in hosts:
            del host["is_whole"]
        return {
            "schema": SCHEMA,
            "time": self.time,
            "exit_code": int(self.exit_code),
            "counts": self.counts,
            "stale": len(self.stale),
            "groups": [asdict(group) for group in self.groups()],
            "hosts": hosts,
        }


def make_report(
    hosts: Iterable[Host],
    *,
    time: int,
    oldest: float = 0.0,
    drivers: Collection[str] = (),
    states: Collection[str] = (),
) -> FleetReport:
    """Return the report of hosts, or of those that a filter leaves.

    Args:
        hosts: The hosts, in any order.
        time: Unix time of the query.
        oldest: Seconds after which a status is stale; 0: never.
        drivers: Only these drivers, and hosts without a known status; empty: all.
        states: Only hosts in these states, or ``stale`` ones; empty: all.
    """
    found = [kept for host in hosts if (kept := _with(host, drivers)) is not None]
    found.sort(key=lambda host: (rank(host.state), _natural(host.name)))
    report = FleetReport(tuple(found), time, oldest)
    if not states:
        return report
    left = (
        host
        for host in found
        if host.state in states or ("stale" in states and report.is_stale(host))
    )
    return replace(report, hosts=tuple(left))


def _with(host: Host, drivers: Collection[str]) -> Host | None:
    """Return a host with only these drivers; None if it has none of them."""
    if not drivers or (not host.drivers and host.is_whole):
        return host
    left = tuple(driver for driver in host.drivers if driver.name in drivers)
    if not left:
        return None
    state = host.state if host.is_whole else worst(driver.state for driver in left)
    return replace(host, drivers=left, state=state)


def _counted(states: Iterable[str]) -> dict[str, int]:
    counts = Counter(states)
    return {state: counts[state] for state in sorted(counts, key=lambda one: (rank(one), one))}


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which ``web2`` comes before ``web10``."""
    parts = _DIGITS.split(name)
    return [(1, int(part), "") if place % 2 else (0, 0, part) for place, part in enumerate(parts)]


_FILES = PageFiles(
    "fleet/page.html.j2",
    styles=("matrix/page.css", "fleet/page.css"),
    scripts=("page/shared.js", "fleet/page.js"),
)
# The looks that the style sheet has, by state; all that needs care looks failed.
_LOOKS = {"ready": "built", "pending": "not-supported", "reboot-required": "not-built"}


def render_page(
    report: FleetReport, templates: Path, *, title: str = "Drivers of the fleet"
) -> str:
    """Return the page of a report.

    Args:
        report: The report.
        templates: Folder of the templates.
        title: The heading of the page.

    Raises:
        NotFoundError: The folder lacks its templates.
    """
    identities = {id(host): f"host-{number}" for number, host in enumerate(report.hosts)}
    rows = [
        _page_row(report, identities[id(host)], host, driver, kernel)
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
        "details": [_page_detail(report, identities[id(host)], host) for host in report.hosts],
    }
    return render_html(templates, _FILES, time=report.time, values=values)


def _look(state: str) -> tuple[str, str, str]:
    """Return the look, the symbol and the words of a state."""
    symbol, words = STATES.get(state, ("?", state))
    return _LOOKS.get(state, "failed"), symbol, words


def _page_row(
    report: FleetReport,
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


def _page_detail(report: FleetReport, identity: str, host: Host) -> dict[str, Any]:
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
