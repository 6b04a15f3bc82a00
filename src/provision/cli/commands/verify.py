"""``provision verify`` and ``provision doctor``: what is wrong with artifacts and with the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.output import megabytes, print_fields, print_json
from provision.cli.progress_display import shown
from provision.cli.tables import print_table
from provision.cli.target import job
from provision.doctor import Result, State, diagnose, observe
from provision.engine.docker_api import names_registry
from provision.errors import ExitCode
from provision.kmod.verify import Report
from provision.manifest import Manifest
from provision.pipeline.archived import is_archive_name, open_archive
from provision.pipeline.artifacts import verify_current, verify_image, verify_path
from provision.pipeline.pulling import verify_pulled
from provision.pipeline.registries import Consent, connect, examine
from provision.pipeline.workspace import load_settings
from provision.registry.names import parse_reference

_COLOURS: Mapping[State, str] = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "cyan"}


@click.command("verify")
@click.argument("what", metavar="IMAGE|FILE.tar|STORE-ENTRY|DRIVER")
@options.insecure
@options.public_key
@options.root
@options.as_json
def verify_command(
    *, what: str, public_key: Path | None, insecure: bool, root: Path, as_json: bool
) -> None:
    """Compare an artifact with its manifest: every module and file, and the kernel they are for.

    The artifact is that of an image, a folder of a store, or the one of DRIVER that is in use.
    """
    report = _report(what, root, Consent(public_key, insecure))
    manifest = report.require_whole(f"'{what}'")
    if as_json:
        print_json(_document(what, report, manifest))
        return
    rows = [(m.name, m.vermagic, megabytes(m.size)) for m in manifest.modules]
    print_table(("module", "vermagic", "size>"), rows)
    pin = manifest.pin
    print_fields(
        [
            ("driver", f"{pin.driver.name} {pin.driver.version} ({pin.driver.flavour})"),
            ("kernel", pin.kernel.release),
            ("files", len(manifest.files)),
            ("compared", megabytes(report.size)),
            ("digest", pin.digest),
            ("result", "whole"),
        ]
    )


def _report(what: str, root: Path, consent: Consent) -> Report:
    path = Path(what)
    if path.is_file() and is_archive_name(what):
        with job(root) as work:
            archive = open_archive(work.settings, path, progress=work.progress)
            trusted = examine(work.settings, archive, {}, consent)
            return verify_pulled(work.settings, trusted, progress=work.progress)
    if path.is_dir() or what.startswith(("/", "./", "../")):
        with shown(verbose=False) as progress:
            return verify_path(path, progress=progress)
    if ":" in what or "/" in what:
        with job(root) as work:
            if names_registry(what):
                client = connect(work.settings, parse_reference(what))
                trusted = examine(work.settings, client, {}, consent)
                return verify_pulled(work.settings, trusted, progress=work.progress)
            return verify_image(work.settings, work.engine, what, progress=work.progress)
    with shown(verbose=False) as progress:
        return verify_current(load_settings(root), what, progress=progress)


def _document(what: str, report: Report, manifest: Manifest) -> dict[str, Any]:
    return {
        "target": what,
        "digest": manifest.pin.digest,
        "image": manifest.pin.image,
        "driver": manifest.pin.driver.model_dump(mode="json"),
        "kernel": manifest.pin.kernel.release,
        "modules": [module.model_dump(mode="json") for module in manifest.modules],
        "files": len(manifest.files),
        "compared": report.size,
        "findings": [],
    }


@click.command("doctor")
@click.option("--all", "with_ok", is_flag=True, help="Show also what is right.")
@options.root
@options.as_json
def doctor_command(*, with_ok: bool, root: Path, as_json: bool) -> int:
    """Look for what is commonly wrong with drivers on a host, and say what to do about it.

    Nothing is changed. The exit code is 1 where something fails.
    """
    results = diagnose(observe(root))
    states = Counter(result.state for result in results)
    if as_json:
        print_json(
            {"checks": [asdict(result) for result in results], "states": dict(states)},
        )
    else:
        _print([r for r in results if with_ok or r.state != "ok"])
        click.echo(", ".join(f"{states[state]} {state}" for state in _COLOURS if states[state]))
    return ExitCode.FAILED if states["fail"] else ExitCode.DONE


def _print(results: Iterable[Result]) -> None:
    for result in results:
        state = click.style(f"{result.state:<7}", fg=_COLOURS[result.state], bold=True)
        driver = f" ({result.driver})" if result.driver else ""
        click.echo(f"{state} {click.style(result.check, bold=True)}{driver}: {result.seen}")
        for name, text in (("cause", result.cause), ("cure", result.cure)):
            if text:
                click.echo(f"        {name}: {text}")
