"""``provision fleet``: the group and its command ``status``."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from provision.catalogue import templates_dir
from provision.cli import options
from provision.cli.display import print_table
from provision.cli.options import print_json
from provision.errors import UsageError
from provision.files import write_atomic
from provision.fleet.gather import (
    AnsibleOptions,
    hosts_of_folder,
    hosts_of_inventory,
    hosts_of_prometheus,
)
from provision.fleet.host_status import STATES, Host, KernelRow, is_out
from provision.fleet.metrics import hosts_of_files
from provision.fleet.report import FleetReport, make_report, render_page
from provision.pipeline.html_page import shown_time

_AGE = re.compile(r"(\d{1,6})([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_REASON = 160


@click.group("fleet", no_args_is_help=False)
def command() -> None:
    """Watch many hosts from one place."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of the hosts' status."""

    inventory: Path | None
    metrics: tuple[str, ...]
    status: Path | None
    forks: int
    timeout: int
    limit: str | None

    def hosts(self) -> list[Host]:
        """Return the hosts with their status.

        Raises:
            UsageError: The options name no source or two, or belong to another source.
        """
        given = {"--inventory": self.inventory, "--metrics": self.metrics, "--status": self.status}
        named = [name for name, value in given.items() if value]
        if len(named) != 1:
            raise UsageError(
                f"{' and '.join(named)} can't be given together."
                if named
                else "No source for the status of the hosts is named.",
                resolution="Use one of: --inventory FILE (Ansible queries the hosts), --metrics URL"
                " (queries a Prometheus), --status DIR (reads files).",
            )
        if self.limit and not self.inventory:
            raise UsageError(
                "--limit works with --inventory only.",
                resolution="Leave out --limit, or add --inventory FILE.",
            )
        if self.inventory:
            how = AnsibleOptions(forks=self.forks, timeout=self.timeout, limit=self.limit)
            return hosts_of_inventory(self.inventory, how)
        return hosts_of_folder(self.status) if self.status else _of_metrics(self.metrics)


def _of_metrics(sources: tuple[str, ...]) -> list[Host]:
    files = [Path(one) for one in sources if not _is_address(one)]
    hosts = hosts_of_files(files) if files else []
    for address in filter(_is_address, sources):
        hosts += hosts_of_prometheus(address)
    return hosts


def _is_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of hosts to show."""

    driver: tuple[str, ...]
    state: tuple[str, ...]
    max_age: str

    def report(self, hosts: Iterable[Host], *, now: int) -> FleetReport:
        """Return the report of these hosts."""
        return make_report(
            hosts, time=now, oldest=self.oldest(), drivers=self.driver, states=self.state
        )

    def oldest(self) -> float:
        """Return ``max_age`` in seconds.

        Raises:
            UsageError: It is not a time.
        """
        found = _AGE.fullmatch(self.max_age)
        if found is None:
            raise UsageError(
                f"--max-age '{self.max_age}' is not a time.",
                resolution="Use a number with s, m, h or d, such as 90m or 3h; 0 means no limit.",
            )
        return float(found[1]) * _SECONDS[found[2]]


# Options for the source of the status.
_asking = options.option_group(
    "source",
    Source,
    click.option(
        "--inventory",
        type=click.Path(exists=True, path_type=Path),
        metavar="FILE|DIR",
        help="Query the hosts of this inventory with the installed Ansible.",
    ),
    click.option(
        "--metrics",
        multiple=True,
        metavar="URL|FILE",
        help="Query a Prometheus, or read files of metrics; may be given more than once.",
    ),
    click.option(
        "--status",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Read the files NAME.json or NAME/…/status.json of this folder.",
    ),
    click.option(
        "--forks",
        type=click.IntRange(1, 500),
        default=50,
        show_default=True,
        metavar="N",
        help="Number of hosts that Ansible queries in parallel.",
    ),
    click.option(
        "--timeout",
        type=click.IntRange(1, 600),
        default=10,
        show_default=True,
        metavar="SECONDS",
        help="Time limit for the connection to a host.",
    ),
    click.option("--limit", metavar="PATTERN", help="Pattern for hosts of the inventory.  [all]"),
)


# Options that select hosts.
_choosing = options.option_group(
    "choice",
    Choice,
    click.option(
        "--driver",
        multiple=True,
        metavar="NAME",
        help="Show only hosts with this driver; may be given more than once.",
    ),
    click.option(
        "--state",
        multiple=True,
        type=click.Choice([*STATES, "stale"]),
        metavar="STATE",
        help="Show only hosts in this state, or stale ones; may be given more than once.",
    ),
    click.option(
        "--max-age",
        default="3h",
        show_default=True,
        metavar="TIME",
        help="Age after which a status is stale; 0 means no limit.",
    ),
)


@command.command("status")
@_asking
@_choosing
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the report as a self-contained HTML page.",
)
@click.option("--all", "lists_all", is_flag=True, help="Also list the hosts without problems.")
@options.as_json
def status(
    *, source: Source, choice: Choice, html: Path | None, lists_all: bool, as_json: bool
) -> int:
    """Show the state of the drivers of many hosts, by kernel.

    The exit code is 0 if no host has a problem, 4 if some hosts need a reboot and have no other
    problem, and 1 otherwise: a host failed, lacks a driver, can't be reached or has a stale status.
    """
    choice.oldest()
    if html is not None and not html.absolute().parent.is_dir():
        raise UsageError(
            f"There is no folder '{html.absolute().parent}' for the page.",
            resolution=f"Make it: mkdir -p {html.absolute().parent}",
        )
    report = choice.report(source.hosts(), now=int(time.time()))
    if html is not None:
        write_atomic(html, render_page(report, templates_dir()))
    if as_json:
        print_json(report.document())
    else:
        _print(report, html, lists_all=lists_all)
    return report.exit_code


def _print(report: FleetReport, html: Path | None, *, lists_all: bool) -> None:
    groups = report.groups()
    if groups:
        print_table(
            ("driver", "kernel", "role", "versions", "hosts"),
            (
                (g.driver, g.kernel, g.role, ", ".join(g.versions) or "-", _counted(g.counts))
                for g in groups
            ),
        )
    rows = [row for row in report.rows() if lists_all or report.needs_care(row[0])]
    if rows:
        print_table(
            ("host", "driver", "kernel", "role", "state", "version", "seen", "why"),
            (
                (
                    host.name,
                    driver and driver.name,
                    kernel and kernel.release,
                    kernel and kernel.role,
                    f"{(kernel or driver or host).state}{_out(kernel)}",
                    kernel and kernel.version,
                    _seen(report, host),
                    _short((kernel and kernel.reason) or host.reason),
                )
                for host, driver, kernel in rows
            ),
        )
    count = len(report.hosts)
    click.echo(f"{count} {'host' if count == 1 else 'hosts'}: {_counted(report.counts) or 'none'}")
    if report.stale:
        click.echo(
            f"{click.style(str(len(report.stale)), fg='red')} of them have a status that is older"
            " than --max-age, or that has no time: their agent does not run, its status does not"
            " arrive, or their clock is wrong."
        )
    if html is not None:
        click.echo(f"page: {html}")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(
        f"{count} {STATES.get(state, ('', state))[1]}" for state, count in counts.items()
    )


def _out(kernel: KernelRow | None) -> str:
    return " (does not work now)" if kernel and is_out(kernel) else ""


def _seen(report: FleetReport, host: Host) -> str:
    if host.time is None:
        return "never"
    return f"{shown_time(host.time)}{' (stale)' if report.is_stale(host) else ''}"


def _short(reason: str | None) -> str | None:
    if reason is None or len(reason) <= _LONGEST_REASON:
        return reason
    return f"{reason[:_LONGEST_REASON]}…"
