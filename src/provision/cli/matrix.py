"""``matrix``: drivers for many kernels, as a table of what builds, and as images for a fleet."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from provision.build.resolve import pin_document
from provision.build.workspace import Settings
from provision.catalogue.fields import DEFAULT_VERSION
from provision.cli import options
from provision.cli.job import KeyOptions, job, key_options
from provision.cli.options import argument, command, option
from provision.cli.output import advice, coloured, each, emit, remark, table
from provision.errors import ExitCode, ProvisionError
from provision.files import templates_dir, write_output
from provision.fleet import Cell, Fleet, Planned, Selection, load_fleet, plan_cells
from provision.fleet.builds import (
    FleetRegistry,
    Outcome,
    RunOptions,
    build_cells,
    fleet_registry,
    is_trouble,
    resolve_cell,
)
from provision.fleet.offers import ensure_base_images, find_offers, fleet_cells
from provision.fleet.results import (
    LOOKS,
    NOT_BUILT,
    MatrixReport,
    matrix_folder,
    read_result,
    read_results,
    render_page,
    report_of_cells,
    report_of_results,
)
from provision.progress import Note, report
from provision.registry.signatures import Signer

_GOOD = frozenset({"built", "present", "pushed", "not-supported"})


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
    missing: bool = option("--missing", "List only the cells that the registry lacks."),
    builds: bool = option("--build", "Build the cells that have no result."),
    pushes: bool = option(
        "--push", "Build the cells that the registry lacks, push them and sign them."
    ),
    private: KeyOptions = key_options,
    jobs: int = option(
        "--parallel N", "Number of parallel builds.", type=click.IntRange(1, 64), default=1
    ),
    keep_going: bool = option(
        "--keep-going",
        "Continue after a failure of the engine, an archive, the registry or the disk.",
    ),
    network: str | None = options.network,
    html: Path | None = option(
        "--html FILE",
        "Also write the matrix as a self-contained HTML page.",
        type=options.OUTPUT_FILE,
    ),
    trial: bool = options.trial,
    state: Path | None = option(
        "--state DIR", "Folder of the results.  [/var/lib/provision/matrix]", type=options.FOLDER
    ),
    catalogues: tuple[Path, ...] = options.catalogues,
    root: Path = options.root,
) -> None:
    """List drivers on many kernels with their Pins, and build those that are missing.

    The options choose the cells of the matrix, or the file FLEET (fleet.toml) does. With --json,
    each cell has its Pin, for 'provision build --pin' on any machine. A cell whose inputs have not
    changed is not built again, so that an interrupted run continues where it stopped.

    With neither options nor FLEET, the command shows the results of earlier builds.
    """
    chosen = [f"--{name}" for name, value in (named | {"force": force}).items() if value]
    options.refuse(
        file and chosen, f"{', '.join(chosen)} can't be given with FLEET, which names the cells."
    )
    options.refuse(missing and (builds or pushes), "--missing lists; --build and --push build.")
    options.refuse(trial and not (builds or pushes), "--trial tries what --build and --push build.")
    private.check(signs=pushes)
    # Before hours of builds.
    options.refuse(
        html and not html.absolute().parent.is_dir(),
        f"There is no folder '{html and html.absolute().parent}' for the page.",
        f"Make it: mkdir -p {html and html.absolute().parent}",
    )
    root = root.resolve()
    folder = state or matrix_folder(root)
    if file is None and not chosen and not (missing or builds or pushes):
        known, problems = read_results(folder)
        found = report_of_results(known)
        for problem in problems:
            remark(f"Left out: {problem}")
        _write_page(html, found)
        _emit_report(found, folder, html)
        return
    selection = None if file else _selection(named, force=force)
    with job(root, catalogues) as settings:
        fleet = load_fleet(file, settings.catalogue) if file else None
        connected = settings.with_network(network)
        # Check the key before hours of builds.
        signs = pushes and not (fleet and fleet.unsigned)
        private.check(signs=signs)
        signer, words, password = _signing(settings, private) if signs else (None, [], None)
        registry = None
        if pushes or missing or fleet:
            registry = fleet_registry(connected, fleet, signer)
        planned = _planned(connected, file, fleet, selection)
        if not builds and not pushes:
            _emit_cells(connected, registry, planned, folder, missing=missing)
            return
        words += ["--root", str(root), *(f"--catalogue={one.resolve()}" for one in catalogues)]
        words += ["--network", network] if network else []
        how = RunOptions(
            jobs=jobs,
            keep_going=keep_going,
            words=tuple(words),
            stdin=password,
            is_tried=trial,
            registry=registry if pushes else None,
        )
        cells = [one.cell for one in planned]
        report(Note(f"{len(planned)} cells, {how.jobs} at a time"))
        try:
            outcome = build_cells(connected, planned, folder, how)
        finally:
            found = report_of_cells(cells, folder)
            _write_page(html, found)
    if how.registry is not None:
        _emit_pushed(how.registry, cells, outcome, folder)
    else:
        _emit_report(found, folder, html, outcome)


def _selection(named: Mapping[str, str | None], *, force: bool) -> Selection:
    options.refuse(
        named["drivers"] is None,
        "No driver is named.",
        "Name drivers that 'provision drivers' lists (--drivers nvidia,onload), all of them"
        " (--drivers all), or a file: provision matrix fleet.toml.",
    )
    defaults = {"kernels": "latest-3", "versions": DEFAULT_VERSION, "flavours": "default"}
    lists: dict[str, Any] = {}
    for name, value in named.items():
        given = defaults.get(name, "") if value is None else value
        lists[name] = tuple(dict.fromkeys(w for part in given.split(",") if (w := part.strip())))
        options.refuse(
            value is not None and not lists[name],
            f"--{name} is empty.",
            f"Write names with commas between them, or leave out --{name}.",
        )
    # Whether there are such names is found out where they are looked for.
    return Selection.model_construct(**lists, force=force)


def _signing(settings: Settings, private: KeyOptions) -> tuple[Signer, list[str], bytes | None]:
    """Return the signer, and how ``build`` gets the same: its words and its standard input."""
    asked: list[bytes] = []
    signer = private.signer(settings, asked)
    words = ["--sign", *(["--key", private.key] if private.key else [])]
    # A key without a password asks for none.
    return (signer, [*words, "--password-fd", "0"], asked[0]) if asked else (signer, words, None)


def _planned(
    settings: Settings, file: Path | None, fleet: Fleet | None, selection: Selection | None
) -> list[Planned]:
    if selection is not None:
        return plan_cells(selection, find_offers(settings, selection))
    return fleet_cells(settings, file, fleet) if file and fleet else []


def _write_page(html: Path | None, report: MatrixReport) -> None:
    if html is not None:
        write_output(html, render_page(report, templates_dir(), time=time.time()))


def _emit_cells(
    settings: Settings,
    registry: FleetRegistry | None,
    planned: Sequence[Planned],
    folder: Path,
    *,
    missing: bool,
) -> None:
    """Resolve cells and print their Pins; what can't be built is named, and the rest goes on."""
    if missing and registry is not None:
        planned = [one for one in planned if one.refusal is not None or not registry.has(one.cell)]
    ensure_base_images(settings, planned)
    cells, refused, failed = [], [], []
    for one in planned:
        document = _document(one.cell)
        if one.refusal is not None:
            refused.append({**document, "message": one.refusal, "resolution": one.resolution})
            continue
        try:
            pin = resolve_cell(settings, one.cell)
        except ProvisionError as error:
            if is_trouble(error.document()):
                raise
            failed.append({**document, **error.document()})
            continue
        known = read_result(folder, one.cell)
        holds = known is not None and known.holds_for(pin.digest)
        cells.append(
            {
                **document,
                "state": known.state if known and holds else NOT_BUILT,
                "reference": str(registry.reference(one.cell)) if registry else None,
                "pin": pin_document(pin),
            }
        )
    emit(
        {
            "registry": registry.address if registry else None,
            "cells": cells,
            "not_supported": refused,
            "failed": failed,
        },
        table("cells", {"cell": "id", "state": "state", "Pin": lambda one: one["pin"]["digest"]}),
        each("not_supported", lambda one: [f"{coloured('not-supported')} {_said(one)}"]),
        each("failed", _trouble),
        code=ExitCode.FAILED if failed else ExitCode.DONE,
    )


def _emit_pushed(
    registry: FleetRegistry, listed: Iterable[Cell], outcome: Outcome, folder: Path
) -> None:
    cells = [_pushed(registry, cell, outcome, folder) for cell in listed]
    counts = Counter(cell["state"] for cell in cells)
    emit(
        {
            "registry": registry.address,
            "counts": counts,
            "cells": cells,
            "built_now": len(outcome.built),
            "state": folder,
        },
        table("cells", {"state": "state", "cell": "id"}),
        each("cells", lambda one: () if one["state"] in _GOOD else _failure(one)),
        ", ".join(f"{count} {state}" for state, count in counts.items()) or "no cells",
        lambda _: _how_to_continue(counts[NOT_BUILT]),
        code=ExitCode.DONE if counts.keys() <= _GOOD else ExitCode.FAILED,
    )


def _pushed(registry: FleetRegistry, cell: Cell, outcome: Outcome, folder: Path) -> dict[str, Any]:
    document: Mapping[str, Any] = {"state": NOT_BUILT}
    if cell in outcome.pushed:
        document = {"state": "pushed"}
    elif cell in outcome.present:
        document = {"state": "present"}
    elif error := outcome.troubles.get(cell):
        document = {"state": "trouble", **error}
    elif (result := read_result(folder, cell)) and result.state != "built":
        # A cell that was built earlier but is not in the registry has not succeeded.
        document = result.model_dump(mode="json", by_alias=True)
    reference = outcome.pushed.get(cell, str(registry.reference(cell)))
    return {**document, **_document(cell), "reference": reference}


def _emit_report(
    report: MatrixReport, folder: Path, html: Path | None, outcome: Outcome | None = None
) -> None:
    done: dict[str, Any] = {}
    code = ExitCode.DONE
    if outcome is not None:
        bad = report.counts["failed"] or report.counts[NOT_BUILT]
        code = ExitCode.FAILED if outcome.troubles or bad else ExitCode.DONE
        troubles = [{**_document(cell), **error} for cell, error in outcome.troubles.items()]
        done = {"built_now": len(outcome.built), "troubles": troubles}
    looks = {
        str(row): lambda column, row=row: " ".join(LOOKS[report.state(row, column)])
        for row in report.rows
    }
    counts = ((count, LOOKS[state][1]) for state, count in report.counts.items() if count)
    emit(
        {**report.document(), **done, "state": folder},
        table(lambda _: report.columns, {"kernel": str, **looks}),
        each("cells", lambda one: _failure(one) if one["state"] == "failed" else ()),
        ", ".join(f"{count} {words}" for count, words in counts),
        each(lambda one: one.get("troubles"), _trouble),
        lambda _: _how_to_continue(report.counts[NOT_BUILT]),
        lambda _: [f"page: {html}"] if html else [],
        code=code,
    )


def _document(cell: Cell) -> dict[str, Any]:
    return {"id": cell.id, **cell.members()}


def _failure(cell: Mapping[str, Any]) -> Iterator[str]:
    yield f"{coloured(cell['state'])} {_said(cell)}"
    yield from advice({"resolution": cell.get("resolution")})
    if cell.get("log"):
        yield f"  Whole output: {cell['log']}"


def _trouble(cell: Mapping[str, Any]) -> Iterator[str]:
    yield f"{click.style('Not looked at:', fg='red')} {_said(cell)}"
    yield from advice(cell)


def _said(cell: Mapping[str, Any]) -> str:
    """Return the name of a cell, and the first thing to know of its failure."""
    name = f"{cell['driver']} {cell['version']} ({cell['flavour']}) on {cell['distro']}"
    first = cell.get("first_error")
    cause = f"{first['file']}:{first['line']}: {first['text']}" if first else cell.get("message")
    return f"{name} {cell['kernel']}" + (f": {cause}" if cause else "")


def _how_to_continue(left: int) -> list[str]:
    message = f"{left} cells are not built. Run the command again to continue;"
    return [f"{message} with --keep-going, it does not stop at such errors."] if left else []
