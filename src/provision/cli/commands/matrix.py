"""``provision matrix``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from provision.build.image_builds import open_engine
from provision.cli import options
from provision.cli.display import print_table
from provision.cli.job import Job, job
from provision.cli.options import print_json
from provision.errors import ExitCode, ProvisionError, UsageError, redact
from provision.files import write_atomic
from provision.fleet.matrix.cells import Planned, Selection
from provision.fleet.matrix.grid import (
    LOOKS,
    MatrixReport,
    render_page,
    report_of_cells,
    report_of_results,
)
from provision.fleet.matrix.offers import ensure_base_images, find_offers
from provision.fleet.matrix.results import Result, Results, matrix_folder
from provision.fleet.matrix.runner import MatrixRun
from provision.fleet.matrix.selecting import plan_cells
from provision.fleet.matrix.work import Outcome, Retry, RunOptions
from provision.progress import Note
from provision.shipped import templates_dir


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that select cells: lists with commas."""

    drivers: str | None
    distros: str | None
    kernels: str | None
    versions: str | None
    flavours: str | None
    force: bool

    def selection(self, *, only_report: bool) -> Selection:
        """Return the selection; for a report of results, an option that is left out selects all.

        Raises:
            UsageError: No driver is named, or a list is empty.
        """
        if self.drivers is None and not only_report:
            raise UsageError(
                "No driver is named.",
                resolution="Name drivers that 'provision drivers' lists (--drivers nvidia,onload),"
                " or all of them (--drivers all).",
            )
        everything = ("all",)
        return Selection(
            drivers=_listed("drivers", self.drivers) or everything,
            distros=_listed("distros", self.distros),
            kernels=_listed("kernels", self.kernels)
            or (everything if only_report else ("latest-3",)),
            versions=_listed("versions", self.versions)
            or (everything if only_report else ("production",)),
            flavours=_listed("flavours", self.flavours)
            or (everything if only_report else ("default",)),
            force=self.force,
        )


def _listed(name: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    words = tuple(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))
    if not words:
        raise UsageError(
            f"--{name} is empty.",
            resolution=f"Write names with commas between them, or leave out --{name}.",
        )
    return words


@dataclass(frozen=True, slots=True)
class Ways:
    """The options of a run."""

    jobs: int
    retry: Retry | None
    keep_images: bool
    keep_going: bool
    network: str | None
    only_report: bool

    def how(self, *, force: bool) -> RunOptions:
        """Return them as a run takes them."""
        return RunOptions(
            jobs=self.jobs,
            retry=self.retry,
            keep_images=self.keep_images,
            keep_going=self.keep_going,
            network=self.network,
            force=force,
        )

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            UsageError: Options of builds are used with ``--only-report``.
        """
        given = {"--retry": self.retry, "--keep-images": self.keep_images}
        wrong = [name for name, value in given.items() if value]
        if self.only_report and wrong:
            raise UsageError(
                f"{', '.join(wrong)} can't be used with --only-report, which builds nothing.",
                resolution="Leave out one of them.",
            )


# Options that select cells.
_asking = options.option_group(
    "asked",
    Asked,
    click.option("--drivers", metavar="A,B|all", help="Drivers of the catalogue."),
    click.option("--distros", metavar="ID:VERSION,…", help="Distros.  [the host's]"),
    click.option(
        "--kernels",
        metavar="K,…|latest-N|all",
        help="Kernels, patterns such as '6.1.0-*', or the newest N of each series.  [latest-3]",
    ),
    click.option(
        "--versions",
        metavar="V,…|latest-N|all",
        help="Versions, branches or kinds of branches (lts) of the drivers.  [production]",
    ),
    click.option("--flavours", metavar="F,…|all", help="Flavours of the drivers.  [their default]"),
    click.option(
        "--force", is_flag=True, help="Also build cells that the recipe does not support."
    ),
)


# Options of a run.
_going = options.option_group(
    "ways",
    Ways,
    click.option(
        "--parallel",
        "jobs",
        type=click.IntRange(1, 64),
        default=1,
        show_default=True,
        metavar="N",
        help="Number of parallel builds.",
    ),
    click.option(
        "--retry",
        type=click.Choice(["failed", "all"]),
        help="Build failed or all cells again, even if nothing has changed.",
    ),
    click.option("--keep-images", is_flag=True, help="Keep the images in the engine."),
    click.option(
        "--keep-going",
        is_flag=True,
        help="Continue after a failure of the engine, an archive or the disk.",
    ),
    click.option(
        "--network",
        metavar="MODE",
        help="Network of the containers that download, as 'docker run' takes it.",
    ),
    click.option("--only-report", is_flag=True, help="Build nothing; show the known results."),
)


@click.command("matrix")
@_asking
@_going
@click.option(
    "--html",
    type=options.OUTPUT_FILE,
    metavar="FILE",
    help="Also write the matrix as a self-contained HTML page.",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the results.  [/var/lib/provision/matrix]",
)
@options.catalogue
@options.root
@options.as_json
def command(
    *,
    asked: Asked,
    ways: Ways,
    html: Path | None,
    state: Path | None,
    root: Path,
    catalogues: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Build drivers for many kernels and show which of them build.

    A cell whose inputs have not changed is not built again, so that an interrupted run continues
    where it stopped.
    """
    ways.check()
    selection = asked.selection(only_report=ways.only_report)
    _check_page(html)
    root = root.resolve()
    results = Results(state or matrix_folder(root))
    if ways.only_report:
        known, problems = results.load()
        report, outcome = report_of_results(known, selection), None
        for problem in problems:
            click.echo(f"Left out: {problem}", err=True)
        _write_page(html, report)
    else:
        with job(root, catalogues) as work:
            planned = _planned(work, selection, ways)
            report, outcome = _built(work, planned, results, ways.how(force=asked.force), html)
    if as_json:
        print_json(_document(report, outcome, results))
    else:
        _print(report, outcome, html)
    return _status(report, outcome)


def _check_page(html: Path | None) -> None:
    """Check before hours of builds that the page can be written.

    Raises:
        UsageError: Its folder is missing.
    """
    if html is not None and not html.absolute().parent.is_dir():
        raise UsageError(
            f"There is no folder '{html.absolute().parent}' for the page.",
            resolution=f"Make it: mkdir -p {html.absolute().parent}",
        )


def _planned(work: Job, selection: Selection, ways: Ways) -> list[Planned]:
    offers = find_offers(work.settings, lambda: work.engine, selection, progress=work.progress)
    planned = plan_cells(selection, offers)
    ensure_base_images(work.settings, lambda: work.engine, planned, progress=work.progress)
    builds = sum(one.refusal is None for one in planned)
    work.progress(Note(f"{len(planned)} cells, {builds} of them supported; {ways.jobs} at a time"))
    return planned


def _built(
    work: Job, planned: list[Planned], results: Results, how: RunOptions, html: Path | None
) -> tuple[MatrixReport, Outcome]:
    """Build the cells, and write the page even if the run fails."""
    run = MatrixRun(
        work.settings, results, how, lambda: open_engine(work.settings), progress=work.progress
    )
    cells = [one.cell for one in planned]
    try:
        outcome = run.run(planned)
    finally:
        _write_page(html, report_of_cells(cells, results))
    return report_of_cells(cells, results), outcome


def _write_page(html: Path | None, report: MatrixReport) -> None:
    if html is not None:
        write_atomic(html, render_page(report, templates_dir(), time=time.time()))


def _status(report: MatrixReport, outcome: Outcome | None) -> int:
    """Return the exit code; a report of known results never fails."""
    if outcome is None:
        return ExitCode.DONE
    counts = report.counts
    is_bad = outcome.troubles or outcome.left or counts["failed"] or counts["not-built"]
    return ExitCode.FAILED if is_bad else ExitCode.DONE


def _document(report: MatrixReport, outcome: Outcome | None, results: Results) -> dict[str, Any]:
    done: dict[str, Any] = {}
    if outcome is not None:
        done = {
            "built_now": len(outcome.built),
            "unchanged": len(outcome.unchanged),
            "left": len(outcome.left),
            "troubles": [_trouble(str(cell), error) for cell, error in outcome.troubles],
        }
    return {**report.document(), **done, "state": str(results.folder)}


def _trouble(cell: str, error: ProvisionError) -> dict[str, Any]:
    return {
        "cell": cell,
        "message": error.message,
        "resolution": error.resolution,
        "details": error.details,
    }


def _print(report: MatrixReport, outcome: Outcome | None, html: Path | None) -> None:
    rows = (
        (column, *(" ".join(LOOKS[report.state(row, column)]) for row in report.rows))
        for column in report.columns
    )
    print_table(("kernel", *map(str, report.rows)), rows)
    for result in report.failed():
        _print_failure(result)
    counts = ((count, LOOKS[state][1]) for state, count in report.counts.items() if count)
    click.echo(", ".join(f"{count} {words}" for count, words in counts))
    for cell, error in outcome.troubles if outcome else ():
        click.echo(f"{click.style('Not looked at:', fg='red')} {cell}: {error.message}")
        for line in (error.details or "").splitlines():
            click.echo(f"  {line}")
        if error.resolution:
            click.echo(f"  What to do: {error.resolution}")
    if outcome is not None and outcome.left:
        click.echo(
            f"{len(outcome.left)} cells were left out. Run the command again to continue;"
            " with --keep-going, it does not stop at such errors."
        )
    if html is not None:
        click.echo(f"page: {html}")


def _print_failure(result: Result) -> None:
    click.echo(f"{click.style('failed', fg='red')} {result.cell}: {result.cause}")
    if result.first_error is not None and result.message:
        click.echo(f"  {redact(result.message)}")
    if result.resolution:
        click.echo(f"  What to do: {redact(result.resolution)}")
    if result.log:
        click.echo(f"  Whole output: {redact(result.log)}")
