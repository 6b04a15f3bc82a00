"""``provision plan``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from provision.agent.desired import load_desired
from provision.agent.plan import Mode, Plan
from provision.agent.reconcile import look_at
from provision.cli import options
from provision.cli.output import print_json
from provision.errors import ExitCode


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
    if as_json:
        print_json(
            {
                "actions": [{**asdict(a), "what": str(a)} for a in planned.actions],
                "blocked": [asdict(blocked) for blocked in planned.blocked],
                "kernels": asdict(status.kernels),
            }
        )
    else:
        _print(planned)
    return ExitCode.DONE


def _print(planned: Plan) -> None:
    for number, action in enumerate(planned.actions, start=1):
        click.echo(f"{number}. {action}")
    for blocked in planned.blocked:
        click.echo(f"Not now: {blocked.driver} for {blocked.kernel}: {blocked.reason}")
        if blocked.resolution:
            click.echo(f"  What to do: {blocked.resolution}")
    if not planned.actions and not planned.blocked:
        click.echo("Nothing to do.")
