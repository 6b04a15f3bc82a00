"""``matrix``: drivers for many kernels, as a table of what builds, and as images for a fleet."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from provision.build.resolve import pin_document
from provision.build.workspace import Settings
from provision.catalogue.upstream import DEFAULT_VERSION
from provision.cli import options
from provision.cli.job import KeyOptions, job, key_options
from provision.cli.options import argument, command, option
from provision.cli.output import (
    advice,
    coloured,
    each,
    emit,
    error_document,
    remark,
    table,
)
from provision.errors import ExitCode, ProvisionError, UsageError, redact
from provision.files import write_output
from provision.fleet.matrix.cells import Cell, Planned, Selection, plan_cells
from provision.fleet.matrix.grid import (
    LOOKS,
    MatrixReport,
    render_page,
    report_of_cells,
    report_of_results,
)
from provision.fleet.matrix.offers import ensure_base_images, find_offers
from provision.fleet.matrix.results import Outcome, Result, Results, matrix_folder
from provision.fleet.matrix.runner import (
    MatrixRun,
    Retry,
    RunOptions,
    refuse_trouble,
    resolve_cell,
)
from provision.fleet.prebuild import (
    Fleet,
    FleetRegistry,
    cell_document,
    cell_id,
    fleet_cells,
    fleet_registry,
    load_fleet,
    pushed_rows,
    read_cell,
    split_present,
    with_registry,
)
from provision.progress import Note, report
from provision.registry.keys import Signer
from provision.shipped import templates_dir

_GOOD = frozenset({"present", "pushed", "not-supported"})


@command("matrix")
def matrix_command(
    *,
    file: Path | None = argument("[FLEET]", type=click.Path(path_type=Path)),
    named: dict[str, str | None] = options.group(
        dict,
        drivers=option("--drivers A,B|all", "Drivers of the catalogue, in place of FLEET."),
        distros=option("--distros ID:VERSION,…", "Distros.  [the host's]"),
        kernels=option(
            "--kernels K,…|latest-N|all",
            "Kernels, patterns such as '6.1.0-*', or the newest N of each series.  [latest-3]",
        ),
        versions=option(
            "--versions V,…|latest-N|all",
            "Versions, branches or kinds of branches (lts) of the drivers.  [auto]",
        ),
        flavours=option("--flavours F,…|all", "Flavours of the drivers.  [their default]"),
        cards=option(
            "--cards VENDOR:DEVICE,…",
            "Cards of the hosts, as 'lspci -n' prints them: the flavours and versions that they"
            " need.",
        ),
    ),
    force: bool = option("--force", "Also build cells that are known to fail."),
    pushes: bool = option(
        "--push", "Build the cells that the registry lacks, push them and sign them."
    ),
    private: KeyOptions = key_options,
    cells: tuple[str, ...] = option(
        "--cell ID",
        "Build only this cell of FLEET, named as --list names it; may be given more than once.",
        multiple=True,
    ),
    lists: bool = option(
        "--list", "Build nothing; print the command that pushes each cell of FLEET."
    ),
    plans: bool = option(
        "--plan",
        "Build nothing; resolve the cells. With --json, each has its Pin, for 'build --pin'"
        " anywhere.",
    ),
    missing: bool = option(
        "--missing", "With --list or --plan: only cells that the registry lacks."
    ),
    jobs: int | None = option(
        "--parallel N", "Number of parallel builds.  [FLEET's, or 1]", type=click.IntRange(1, 64)
    ),
    retry: Retry | None = option(
        "--retry",
        "Build failed or all cells again, even if nothing has changed.",
        type=click.Choice(["failed", "all"]),
    ),
    keep_images: bool = option("--keep-images", "Keep the images in the engine."),
    keep_going: bool = option(
        "--keep-going",
        "Continue after a failure of the engine, an archive, the registry or the disk.",
    ),
    network: str | None = options.network,
    only_report: bool = option("--only-report", "Build nothing; show the known results."),
    html: Path | None = option(
        "--html FILE",
        "Also write the matrix as a self-contained HTML page.",
        type=options.OUTPUT_FILE,
    ),
    state: Path | None = option(
        "--state DIR", "Folder of the results.  [/var/lib/provision/matrix]", type=options.FOLDER
    ),
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
) -> None:
    """Build drivers for many kernels and show which of them build.

    The options choose the cells of the matrix, or the file FLEET (fleet.toml) does. A cell whose
    inputs have not changed is not built again, so that an interrupted run continues where it
    stopped.

    With --push, the cells that the registry lacks are built, pushed and signed. The registry is
    that of FLEET or provision.toml. Several machines may run this at the same time, for all cells
    or for one cell each.
    """
    selecting = {**named, "force": force, "only-report": only_report}
    wrong = [f"--{name}" for name, value in selecting.items() if value]
    _refuse(file and wrong, f"{', '.join(wrong)} can't be given with FLEET, which names the cells.")
    _refuse(file is None and (cells or lists), "--cell and --list need the file FLEET.")
    _refuse(
        missing and not (lists or plans),
        "--missing works with --list and --plan; --push leaves out present cells.",
    )
    _refuse(
        plans and (pushes or lists or only_report or retry or keep_images or html),
        "--plan builds nothing: it can't be given with --push, --list, --only-report, --retry,"
        " --keep-images and --html.",
    )
    _refuse(
        only_report and (retry or keep_images or pushes),
        "--only-report builds nothing: --retry, --keep-images and --push can't be given with it.",
    )
    if lists or not pushes:
        private.check(signs=False)
    if html is not None and not html.absolute().parent.is_dir():
        # Before hours of builds.
        raise UsageError(
            f"There is no folder '{html.absolute().parent}' for the page.",
            resolution=f"Make it: mkdir -p {html.absolute().parent}",
        )
    chosen = [Planned(read_cell(name)) for name in cells]
    selection = None if file else _selection(named, force=force, only_report=only_report)
    root = root.resolve()
    results = Results(state or matrix_folder(root))
    if only_report and selection is not None:
        known, problems = results.load()
        report = report_of_results(known, selection)
        for problem in problems:
            remark(f"Left out: {problem}")
        _write_page(html, report)
        _emit_report(report, None, results, html)
        return
    with job(root, catalogues) as settings:
        fleet = load_fleet(file, settings.catalogue) if file else None
        registry = None
        if pushes or lists or missing or (plans and fleet is not None):
            # Check the key before hours of builds.
            signer = _signer(settings, fleet, private) if pushes else None
            registry = fleet_registry(settings, fleet, signer)
        connected = settings.with_network(network or (fleet.network if fleet else None))
        planned = chosen or _planned(connected, file, fleet, selection)
        how = RunOptions(
            jobs=jobs or (fleet.jobs if fleet else 1),
            retry=retry,
            keep_images=keep_images,
            keep_going=keep_going,
            force=force or (fleet is not None and any(build.force for build in fleet.builds)),
            publisher=registry,
        )
        if lists or plans:
            if missing and registry is not None:
                planned, _ = split_present(registry, planned)
            _emit_cells(connected, file if lists else None, registry, planned)
            return
        listed = [one.cell for one in planned]
        present: list[Cell] = []
        if registry is not None:
            planned, present = split_present(registry, planned)
            registry.add_operator_tags(present)
        try:
            outcome = _built(connected, planned, results, how, present=len(present))
        finally:
            report = report_of_cells(listed, results)
            _write_page(html, report)
    if registry is not None:
        rows = pushed_rows(registry, listed, present, outcome, results)
        _emit_pushed(registry, rows, results)
        return
    _emit_report(report, outcome, results, html)


def _refuse(is_wrong: object, message: str) -> None:
    if is_wrong:
        raise UsageError(message, resolution="'provision matrix --help' lists the options.")


def _selection(named: Mapping[str, str | None], *, force: bool, only_report: bool) -> Selection:
    """Return the selection of the options; a report of results selects all by default."""
    if named["drivers"] is None and not only_report:
        raise UsageError(
            "No driver is named.",
            resolution="Name drivers that 'provision drivers' lists (--drivers nvidia,onload),"
            " all of them (--drivers all), or a file: provision matrix fleet.toml.",
        )
    defaults = {"kernels": "latest-3", "versions": DEFAULT_VERSION, "flavours": "default"}
    unnamed = {"cards", "distros"}
    lists: dict[str, Any] = {}
    for name, value in named.items():
        given = value
        if given is None:
            given = "" if name in unnamed else "all" if only_report else defaults[name]
        lists[name] = tuple(dict.fromkeys(w for part in given.split(",") if (w := part.strip())))
        if value is not None and not lists[name]:
            raise UsageError(
                f"--{name} is empty.",
                resolution=f"Write names with commas between them, or leave out --{name}.",
            )
    # Whether there are such names is found out where they are looked for.
    return Selection.model_construct(**lists, force=force)


def _signer(settings: Settings, fleet: Fleet | None, private: KeyOptions) -> Signer | None:
    private.check(signs=fleet is None or not fleet.unsigned)
    if fleet is None or fleet.sign_key is None:
        return None if fleet is not None and fleet.unsigned else private.signer(settings)
    password = fleet.sign_password_file or settings.config.registry.sign_password_file
    return private.signer(
        with_registry(settings, sign_key=fleet.sign_key, sign_password_file=password)
    )


def _planned(
    settings: Settings, file: Path | None, fleet: Fleet | None, selection: Selection | None
) -> list[Planned]:
    if selection is not None:
        return plan_cells(selection, find_offers(settings, selection))
    return fleet_cells(settings, file, fleet) if file and fleet else []


def _built(
    settings: Settings, planned: list[Planned], results: Results, how: RunOptions, *, present: int
) -> Outcome:
    if not planned:
        return Outcome()
    ensure_base_images(settings, planned)
    builds = sum(one.refusal is None for one in planned)
    there = f"{present} present, " if how.publisher else ""
    said = f"{len(planned) + present} cells: {there}{builds} to build; {how.jobs} at a time"
    report(Note(said))
    run = MatrixRun(settings, results, how)
    return run.run(planned)


def _write_page(html: Path | None, report: MatrixReport) -> None:
    if html is not None:
        write_output(html, render_page(report, templates_dir(), time=time.time()))


def _emit_cells(
    settings: Settings,
    file: Path | None,
    registry: FleetRegistry | None,
    planned: Sequence[Planned],
) -> None:
    if file and registry:
        _emit_list(file, registry, planned)
    else:
        _emit_plan(settings, registry, planned)


def _emit_list(file: Path, registry: FleetRegistry, planned: Sequence[Planned]) -> None:
    """Print a command for each cell; the commands share only the registry."""
    cells = [
        {
            **cell_document(one.cell),
            "reference": str(registry.reference(one.cell)),
            "command": ["provision", "matrix", str(file), "--push", "--cell", cell_id(one.cell)],
        }
        for one in planned
        if one.refusal is None
    ]
    refused = [
        {**cell_document(one.cell), "message": one.refusal, "resolution": one.resolution}
        for one in planned
        if one.refusal is not None
    ]
    emit(
        {"registry": registry.address, "cells": cells, "not_supported": refused},
        each("cells", lambda one: [shlex.join(one["command"])]),
    )


def _emit_plan(
    settings: Settings, registry: FleetRegistry | None, planned: Sequence[Planned]
) -> None:
    """Resolve cells and print their Pins; what can't be built is named, and the rest goes on."""
    ensure_base_images(settings, planned)
    cells, refused, failed = [], [], []
    for one in planned:
        document = cell_document(one.cell)
        if one.refusal is not None:
            refused.append({**document, "message": one.refusal, "resolution": one.resolution})
            continue
        try:
            resolved = resolve_cell(settings, one.cell)
        except ProvisionError as error:
            refuse_trouble(error)
            failed.append({**document, **error_document(error)})
            continue
        reference = str(registry.reference(one.cell)) if registry else None
        pin = pin_document(resolved.pin, resolved.urls)
        cells.append({**document, "reference": reference, "pin": pin})
    emit(
        {
            "registry": registry.address if registry else None,
            "cells": cells,
            "not_supported": refused,
            "failed": failed,
        },
        table("cells", {"cell": "id", "image": lambda one: one["pin"]["image"]}),
        each("failed", _trouble),
        code=ExitCode.FAILED if failed else ExitCode.DONE,
    )


def _emit_pushed(
    registry: FleetRegistry, cells: Sequence[Mapping[str, Any]], results: Results
) -> None:
    counts = Counter(cell["state"] for cell in cells)
    document = {
        "registry": registry.address,
        "counts": dict(counts),
        "cells": cells,
        "state": results.folder,
    }
    emit(
        document,
        table("cells", {"state": "state", "cell": "id"}),
        each("cells", _not_pushed),
        ", ".join(f"{count} {state}" for state, count in counts.items()) or "no cells",
        lambda _: _how_to_continue(counts["left"]),
        code=ExitCode.DONE if counts.keys() <= _GOOD else ExitCode.FAILED,
    )


def _not_pushed(cell: Mapping[str, Any]) -> Iterator[str]:
    if cell["state"] in _GOOD | {"left"}:
        return
    first = cell.get("first_error")
    said = f"{first['file']}:{first['line']}: {first['text']}" if first else cell.get("message")
    yield f"{coloured(cell['state'])} {cell['id']}: {said}"
    yield from advice(cell)
    if cell.get("log"):
        yield f"  Whole output: {cell['log']}"


def _emit_report(
    report: MatrixReport, outcome: Outcome | None, results: Results, html: Path | None
) -> None:
    done: dict[str, Any] = {}
    code = ExitCode.DONE
    if outcome is not None:
        bad = report.counts["failed"] or report.counts["not-built"]
        code = ExitCode.FAILED if outcome.troubles or outcome.left or bad else ExitCode.DONE
        done = {
            "built_now": len(outcome.built),
            "unchanged": len(outcome.unchanged),
            "left": len(outcome.left),
            "troubles": [
                {"cell": str(cell), **error_document(error)} for cell, error in outcome.troubles
            ],
        }
    looks = {
        str(row): lambda column, row=row: " ".join(LOOKS[report.state(row, column)])
        for row in report.rows
    }
    counts = ((count, LOOKS[state][1]) for state, count in report.counts.items() if count)
    emit(
        {**report.document(), **done, "state": results.folder},
        table(lambda _: report.columns, {"kernel": str, **looks}),
        each(lambda _: report.failed(), _failure),
        ", ".join(f"{count} {words}" for count, words in counts),
        each(lambda one: one.get("troubles"), _trouble),
        lambda one: _how_to_continue(one.get("left", 0)),
        lambda _: [f"page: {html}"] if html else [],
        code=code,
    )


def _failure(result: Result) -> Iterator[str]:
    yield f"{coloured('failed')} {result.cell}: {result.cause}"
    if result.first_error is not None and result.message:
        yield f"  {redact(result.message)}"
    yield from advice({"resolution": result.resolution and redact(result.resolution)})
    if result.log:
        yield f"  Whole output: {redact(result.log)}"


def _trouble(trouble: Mapping[str, Any]) -> Iterator[str]:
    cell = trouble.get("cell") or trouble["id"]
    yield f"{click.style('Not looked at:', fg='red')} {cell}: {trouble['message']}"
    yield from advice(trouble)


def _how_to_continue(left: int) -> list[str]:
    said = f"{left} cells were left out. Run the command again to continue;"
    return [f"{said} with --keep-going, it does not stop at such errors."] if left else []
