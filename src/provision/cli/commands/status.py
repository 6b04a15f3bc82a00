"""``provision status``."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import click

from provision.agent.desired import load_desired
from provision.agent.reconcile import look_at
from provision.agent.status import Status
from provision.cli import options
from provision.cli.output import print_json
from provision.errors import ExitCode, UsageError

_SECONDS = 2.0


@click.command("status")
@click.option("--watch", is_flag=True, help="Show it until interrupted.")
@click.option(
    "--check",
    is_flag=True,
    help="End with 0 only if every driver works with this kernel and those that may boot next.",
)
@click.option(
    "--kubernetes", "node", metavar="NODE", help="Write it to a node's labels and events too."
)
@options.catalogue
@options.root
@options.as_json
def command(
    *,
    watch: bool,
    check: bool,
    node: str | None,
    catalogues: tuple[Path, ...],
    root: Path,
    as_json: bool,
) -> int:
    """Show how this host is: each driver, for the running kernel and those that may boot next."""
    root = root.resolve()
    if watch and node is not None:
        raise UsageError("--watch and --kubernetes can't be given together.")
    if as_json:
        status = _look(root, catalogues)
        _publish(status, node)
        print_json(status.document())
        return _checked(status) if check else ExitCode.DONE
    # Tables take a while to load.
    tables = importlib.import_module("provision.cli.status_table")
    if watch:
        tables.watch(lambda: _look(root, catalogues), seconds=_SECONDS, sleep=time.sleep)
        return ExitCode.DONE
    status = _look(root, catalogues)
    _publish(status, node)
    tables.show(status)
    return _checked(status) if check else ExitCode.DONE


def _publish(status: Status, node: str | None) -> None:
    if node is not None:
        # Few hosts are nodes, and the client takes a while to load.
        publisher = importlib.import_module("provision.export.publisher")
        publisher.publish(status.document(), node)


def _checked(status: Status) -> int:
    """Return how the host is for somebody who is about to reboot it."""
    is_ready = all(slot.is_ready for driver in status.drivers for slot in driver.kernels)
    return status.exit_code or (ExitCode.DONE if is_ready else ExitCode.FAILED)


def _look(root: Path, catalogues: tuple[Path, ...]) -> Status:
    _planned, status = look_at(root, load_desired(root, catalogues=catalogues))
    return status
