"""``provision plan``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from provision.agent.desired import load_desired
from provision.agent.model import Desired
from provision.agent.plan import Mode, Plan
from provision.agent.reconcile import look_at
from provision.cli import options
from provision.cli.output import print_json
from provision.errors import ExitCode
from provision.host.kernels import find_kernels
from provision.rootfs import in_root
from provision.store.entries import linked_kernels
from provision.store.layout import STORE, Layout


@click.command("plan")
@click.option("--retry", is_flag=True, help="Plan to try again what failed or was rolled back.")
@click.option("--update", is_flag=True, help="Plan to move versions that are not fixed forward.")
@options.catalogue
@options.root
@options.as_json
def command(
    *, retry: bool, update: bool, catalogues: tuple[Path, ...], root: Path, as_json: bool
) -> int:
    """Say what 'provision apply' would do here, and why; and what can't be done."""
    root = root.resolve()
    desired = load_desired(root, catalogues=catalogues)
    planned, status = look_at(root, desired, Mode(retry=retry, update=update))
    warnings = list(_from_matrix(root, desired))
    if as_json:
        print_json(
            {
                "actions": [{**asdict(a), "what": str(a)} for a in planned.actions],
                "blocked": [asdict(blocked) for blocked in planned.blocked],
                "kernels": asdict(status.kernels),
                "matrix": warnings,
            }
        )
    else:
        _print(planned)
        for one in warnings:
            what = f"{one['driver']} {one['version']} failed on {one['kernel']}"
            click.echo(f"The matrix says: {what}: {one['cause']}")
    return ExitCode.DONE


def _from_matrix(root: Path, desired: Desired) -> Iterator[dict[str, Any]]:
    """Yield what the compatibility matrix says of kernels that are yet to come, if there is one."""
    if not in_root(root, STORE / "matrix").is_dir():
        return
    # Loads the models of results, recipes and provision.toml.
    config = importlib.import_module("provision.config").load(root)
    matrix = importlib.import_module("provision.matrix.host_report")
    kernels = find_kernels(root)
    for driver in desired.drivers:
        ready = linked_kernels(Layout(root, driver.name))
        for result in matrix.failures_ahead(root, config, kernels, driver.name, ready=ready):
            yield {
                "driver": result.driver,
                "version": result.version,
                "flavour": result.flavour,
                "kernel": result.kernel,
                "cause": result.cause,
                "resolution": result.resolution,
            }


def _print(planned: Plan) -> None:
    for number, action in enumerate(planned.actions, start=1):
        click.echo(f"{number}. {action}")
    for blocked in planned.blocked:
        click.echo(f"Not now: {blocked.driver} for {blocked.kernel}: {blocked.reason}")
        if blocked.resolution:
            click.echo(f"  What to do: {blocked.resolution}")
    if not planned.actions and not planned.blocked:
        click.echo("Nothing to do.")
