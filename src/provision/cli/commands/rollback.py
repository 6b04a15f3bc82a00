"""``provision rollback``."""

from __future__ import annotations

from pathlib import Path

import click

from provision.agent.desired import load_desired
from provision.agent.rollback import rollback, would_roll_back
from provision.cli import options
from provision.cli.output import print_json
from provision.cli.reconciling import lazily_shown, print_result, result_document
from provision.errors import ExitCode


@click.command("rollback")
@click.argument("driver")
@options.root
@options.dry_run
@options.as_json
def command(*, driver: str, root: Path, dry_run: bool, as_json: bool) -> int:
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
