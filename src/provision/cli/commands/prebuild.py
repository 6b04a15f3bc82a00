"""``provision prebuild``."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from provision.build.image_builds import open_engine
from provision.build.workspace import Settings
from provision.cli import options
from provision.cli.display import print_table
from provision.cli.job import Job, KeyOptions, job, private_key_options
from provision.cli.options import print_json
from provision.errors import ExitCode, UsageError
from provision.fleet.fleet_file import Fleet, cell_id, fleet_cells, load_fleet, read_cell
from provision.fleet.matrix.cells import Planned
from provision.fleet.matrix.offers import ensure_base_images
from provision.fleet.matrix.results import Results
from provision.fleet.matrix.runner import MatrixRun
from provision.fleet.matrix.work import Outcome, Retry, RunOptions
from provision.fleet.prebuild import (
    FleetRegistry,
    PrebuildReport,
    cell_document,
    prebuild_folder,
    split_present,
)
from provision.progress import Note
from provision.registry.image_signature import Signer

_GOOD = frozenset({"present", "pushed", "not-supported"})
_COLOURS = {"pushed": "green", "failed": "red", "trouble": "red"}


@dataclass(frozen=True, slots=True)
class _Which(KeyOptions):
    """The options that select cells, and the key that signs them."""

    cells: tuple[str, ...]
    lists: bool
    missing: bool

    def check_options(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            UsageError: ``--missing`` or a key is used in vain.
        """
        if self.missing and not self.lists:
            raise UsageError(
                "--missing works with --list only; a build leaves out present cells anyway.",
                resolution="Leave out --missing, or add --list.",
            )
        if self.lists:
            self.check(signs=False)


@dataclass(frozen=True, slots=True)
class _Ways:
    """The options of a run."""

    jobs: int | None
    retry: Retry | None
    keep_images: bool
    keep_going: bool
    network: str | None

    def how(self, fleet: Fleet, *, force: bool) -> RunOptions:
        """Return them as a run takes them; fleet.toml has the defaults."""
        return RunOptions(
            jobs=self.jobs or fleet.jobs,
            retry=self.retry,
            keep_images=self.keep_images,
            keep_going=self.keep_going,
            network=self.network or fleet.network,
            force=force,
        )


_which = options.option_group(
    "which",
    _Which,
    click.option(
        "--cell",
        "cells",
        metavar="ID",
        multiple=True,
        help="Build only this cell, named as --list names it; may be given more than once.",
    ),
    click.option(
        "--list", "lists", is_flag=True, help="Build nothing; print the command for each cell."
    ),
    click.option("--missing", is_flag=True, help="List only cells that the registry lacks."),
    *private_key_options,
)


_ways = options.option_group(
    "ways",
    _Ways,
    click.option(
        "--parallel",
        "jobs",
        type=click.IntRange(1, 64),
        metavar="N",
        help="Number of parallel builds.  [fleet.toml]",
    ),
    click.option(
        "--retry",
        type=click.Choice(["failed", "all"]),
        help="Build cells again that failed here, even if nothing has changed.",
    ),
    click.option("--keep-images", is_flag=True, help="Keep the images in the engine."),
    click.option(
        "--keep-going",
        is_flag=True,
        help="Continue after a failure of the engine, an archive, the registry or the disk.",
    ),
    click.option(
        "--network",
        metavar="MODE",
        help="Network of the containers that download, as 'docker run' takes it.",
    ),
)


@click.command("prebuild")
@click.argument("file", metavar="FLEET", type=click.Path(path_type=Path))
@_which
@_ways
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the results.  [/var/lib/provision/prebuild]",
)
@options.catalogue
@options.root
@options.as_json
def command(
    *,
    file: Path,
    which: _Which,
    ways: _Ways,
    state: Path | None,
    root: Path,
    catalogues: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Build, push and sign the cells of a fleet, which the file FLEET (fleet.toml) describes.

    Cells that the registry has are not built. Several machines may run this command at the same
    time, for all cells or for one cell each.
    """
    which.check_options()
    root = root.resolve()
    chosen = [Planned(read_cell(text)) for text in which.cells]
    with job(root, catalogues) as work:
        fleet = load_fleet(file, work.settings.catalogue)
        # Check the key before hours of builds.
        signer = None if which.lists else _signer(work.settings, fleet, which)
        registry = _registry(work.settings, fleet, signer)
        planned = chosen or _planned(work, file, fleet)
        if which.lists:
            if which.missing:
                planned, _ = split_present(registry, planned, work.progress)
            return _list(file, registry, planned, as_json=as_json)
        results = Results(state or prebuild_folder(root))
        force = any(build.force for build in fleet.builds)
        report = _built(work, registry, planned, results, ways.how(fleet, force=force))
    rows = report.rows()
    if as_json:
        print_json(_document(report, rows))
    else:
        _print(rows)
    return ExitCode.DONE if all(row["state"] in _GOOD for row in rows) else ExitCode.FAILED


def _registry(settings: Settings, fleet: Fleet, signer: Signer | None) -> FleetRegistry:
    return FleetRegistry(
        _settings_of(settings, fleet),
        fleet.registry,
        signer,
        is_signed=not fleet.unsigned,
    )


def _signer(settings: Settings, fleet: Fleet, which: _Which) -> Signer | None:
    which.check(signs=not fleet.unsigned)
    if fleet.unsigned:
        return None
    if fleet.sign_key is not None:
        given = {"sign_key": fleet.sign_key, "sign_password_file": fleet.sign_password_file}
        given = {name: value for name, value in given.items() if value is not None}
        own = settings.config.registry.model_copy(update=given)
        settings = replace(settings, config=settings.config.model_copy(update={"registry": own}))
    return which.signer(settings)


def _settings_of(settings: Settings, fleet: Fleet) -> Settings:
    """Return the settings with the fleet's registry, if provision.toml names none.

    The authorities, TLS settings and credentials of [registry] then apply to it.
    """
    if settings.config.registry.address is not None:
        return settings
    own = settings.config.registry.model_copy(update={"address": fleet.registry})
    return replace(settings, config=settings.config.model_copy(update={"registry": own}))


def _planned(work: Job, file: Path, fleet: Fleet) -> list[Planned]:
    return fleet_cells(work.settings, lambda: work.engine, file, fleet, progress=work.progress)


def _built(
    work: Job, registry: FleetRegistry, planned: list[Planned], results: Results, how: RunOptions
) -> PrebuildReport:
    cells = [one.cell for one in planned]
    lacking, present = split_present(registry, planned, work.progress)
    builds = sum(one.refusal is None for one in lacking)
    work.progress(Note(f"{len(cells)} cells: {len(present)} present, {builds} to build"))
    outcome = Outcome()
    if lacking:
        ensure_base_images(work.settings, lambda: work.engine, lacking, progress=work.progress)
        run = MatrixRun(
            work.settings,
            results,
            replace(how, publisher=registry),
            lambda: open_engine(work.settings),
            progress=work.progress,
        )
        outcome = run.run(lacking)
    return PrebuildReport(registry, cells, present, outcome, results)


def _list(file: Path, registry: FleetRegistry, planned: list[Planned], *, as_json: bool) -> int:
    """Print a command for each cell; the commands share only the registry."""
    commands = [
        ["provision", "prebuild", str(file), "--cell", cell_id(one.cell)]
        for one in planned
        if one.refusal is None
    ]
    if not as_json:
        for words in commands:
            click.echo(shlex.join(words))
        return ExitCode.DONE
    cells = [
        {
            **cell_document(one.cell),
            "reference": str(registry.reference(one.cell)),
            "command": words,
        }
        for one, words in zip((p for p in planned if p.refusal is None), commands, strict=True)
    ]
    left_out = [
        {**cell_document(one.cell), "message": one.refusal, "resolution": one.resolution}
        for one in planned
        if one.refusal is not None
    ]
    print_json({"registry": registry.address, "cells": cells, "not_supported": left_out})
    return ExitCode.DONE


def _document(report: PrebuildReport, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "registry": report.registry.address,
        "counts": dict(Counter(row["state"] for row in rows)),
        "cells": rows,
        "state": str(report.results.folder),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    print_table(("state", "cell"), ((row["state"], row["id"]) for row in rows))
    for row in rows:
        if row["state"] in _GOOD | {"left"}:
            continue
        state = click.style(row["state"], fg=_COLOURS.get(row["state"]))
        first = row.get("first_error")
        said = f"{first['file']}:{first['line']}: {first['text']}" if first else row.get("message")
        click.echo(f"{state} {row['id']}: {said}")
        for line in (row.get("details") or "").splitlines():
            click.echo(f"  {line}")
        for title, key in (("What to do", "resolution"), ("Whole output", "log")):
            if row.get(key):
                click.echo(f"  {title}: {row[key]}")
    counts = Counter(row["state"] for row in rows)
    click.echo(", ".join(f"{count} {state}" for state, count in counts.items()) or "no cells")
    if counts["left"]:
        click.echo(
            "Run the command again to continue; with --keep-going, it does not stop at such errors."
        )
