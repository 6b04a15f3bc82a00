"""``provision render``."""

from __future__ import annotations

from pathlib import Path

import click

from provision.cli import options
from provision.cli.output import print_json
from provision.cli.target import Target, job, target
from provision.errors import UsageError
from provision.files import write_atomic
from provision.pipeline.building import downloaded_files
from provision.pipeline.package_pins import render_context


@click.command("render")
@click.argument("driver")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where the files go; made if it is missing.",
)
@target
@options.dry_run
@options.as_json
def command(
    *,
    driver: str,
    output: Path,
    root: Path,
    catalogues: tuple[Path, ...],
    dry_run: bool,
    as_json: bool,
    target: Target,
) -> None:
    """Write the Dockerfile and the build context of DRIVER; the same Pin gives the same bytes."""
    if output.is_dir() and any(output.iterdir()) and not (output / "Dockerfile").is_file():
        raise UsageError(
            f"'{output}' holds something else.", resolution="Give an empty folder, or a new one."
        )
    with job(root, catalogues) as work:
        resolved = work.resolve(target.of(driver))
        context = render_context(resolved)
        names = sorted([*context.files, *context.downloads, *context.parts, *resolved.attached])
        if not dry_run:
            context.write(output)
            files = downloaded_files(work.settings, resolved, context, progress=work.progress)
            for name, path in files.items():
                write_atomic(output / name, path.read_bytes())
    if as_json:
        print_json(
            {
                "digest": resolved.pin.digest,
                "image": resolved.pin.image,
                "output": str(output),
                "files": names,
                "dry_run": dry_run,
            }
        )
        return
    for name in names:
        click.echo(f"{'would write' if dry_run else 'wrote'} {output / name}")
