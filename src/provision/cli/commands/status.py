"""``provision status`` and ``provision rollback``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from provision.agent.desired import load_desired
from provision.agent.reconcile import look_at
from provision.agent.rollback import rollback, would_roll_back
from provision.agent.status import Status
from provision.cli import options
from provision.cli.options import print_json
from provision.cli.reconciling import lazily_shown, print_result, result_document
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
def status_command(
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
    from provision.cli import tables  # noqa: PLC0415 - takes a while to load

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
        from provision.export.node_labels import publish  # noqa: PLC0415 - as above

        publish(status.document(), node)


def _checked(status: Status) -> int:
    """Return how the host is for someone who is about to reboot it."""
    is_ready = all(artifact.is_ready for driver in status.drivers for artifact in driver.kernels)
    return status.exit_code or (ExitCode.DONE if is_ready else ExitCode.FAILED)


def _look(root: Path, catalogues: tuple[Path, ...]) -> Status:
    _planned, status = look_at(root, load_desired(root, catalogues=catalogues))
    return status


@click.command("rollback")
@click.argument("driver")
@options.root
@options.dry_run
@options.as_json
def rollback_command(*, driver: str, root: Path, dry_run: bool, as_json: bool) -> int:
    """Go back to the artifact of DRIVER that the running kernel used before.

    Modules and user space change together. What is gone back from is not taken again before
    provision.toml asks for something else, or 'provision apply --retry'.
    """
    root = root.resolve()
    if dry_run:
        now, before = would_roll_back(root, driver)
        if as_json:
            print_json({"driver": driver, "from": now, "to": before, "dry_run": True})
        else:
            click.echo(f"{driver} would go back from {now} to {before}.")
        return ExitCode.DONE
    desired = load_desired(root)
    with lazily_shown(verbose=click.get_current_context().find_root().params["verbose"]) as shown:
        result = rollback(root, desired, driver, progress=shown)
    if as_json:
        print_json(result_document(result))
    else:
        print_result(result)
    return result.status.exit_code
