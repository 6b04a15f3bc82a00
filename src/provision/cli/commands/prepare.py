"""``provision prepare``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from provision.agent.conclusion import always_published
from provision.agent.desired import load_desired
from provision.agent.outcome import Run
from provision.agent.plan import Mode
from provision.agent.reconcile import apply
from provision.agent.status import ArtifactStatus, Status
from provision.cli import options
from provision.cli.options import print_json
from provision.cli.reconciling import lazily_shown, print_result, result_document
from provision.errors import ExitCode, UsageError
from provision.host.kernels import kernels_of_usr


@click.command("prepare")
@click.argument("releases", nargs=-1, metavar="[RELEASE]…")
@click.option(
    "--usr",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Take the kernels of this /usr: that of a system which has not booted yet.",
)
@options.catalogue
@options.root
@options.as_json
def command(
    *,
    releases: tuple[str, ...],
    usr: Path | None,
    catalogues: tuple[Path, ...],
    root: Path,
    as_json: bool,
) -> int:
    """Have every driver ready for kernels that are yet to come, named as 'uname -r' prints them.

    Does what 'apply' does, and the same for these kernels. The exit code is only about them: 0
    says that each driver has its artifact.
    """
    coming = tuple(dict.fromkeys([*releases, *(kernels_of_usr(usr) if usr else ())]))
    if not coming:
        raise UsageError(
            "No kernel was named."
            if usr is None
            else f"There is no kernel in '{usr}/lib/modules'.",
            resolution="Name one: provision prepare RELEASE, or a /usr that has one with --usr.",
        )
    root = root.resolve()
    verbose = click.get_current_context().find_root().params["verbose"]
    # Someone asks for it: neither the policy nor an earlier failure counts.
    with lazily_shown(verbose=verbose) as progress, always_published(root, progress):
        desired = replace(load_desired(root, catalogues=catalogues), prebuild=True)
        run = Run(root, desired, Mode(retry=True), catalogues, progress, coming=coming, usr=usr)
        result = apply(run)
    lacking = list(_lacking(result.status, coming))
    if as_json:
        lacks = [{"driver": name, "kernel": artifact.release} for name, artifact in lacking]
        print_json({**result_document(result), "coming": list(coming), "lacking": lacks})
    else:
        print_result(result)
    if not lacking:
        return ExitCode.DONE
    is_unknown = all(artifact.state == "missing" for _, artifact in lacking)
    return ExitCode.NOT_FOUND if is_unknown else ExitCode.FAILED


def _lacking(status: Status, coming: tuple[str, ...]) -> Iterator[tuple[str, ArtifactStatus]]:
    for driver in status.drivers:
        for artifact in driver.kernels:
            if artifact.release in coming and not artifact.is_ready:
                yield driver.name, artifact
