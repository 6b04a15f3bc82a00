"""``provision verify``: whether an artifact is what its manifest says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.options import megabytes, print_fields, print_json
from provision.cli.progress_display import shown
from provision.cli.tables import print_table
from provision.cli.target import job
from provision.engine.docker_api import names_registry
from provision.kmod.findings import Report
from provision.manifest import Manifest
from provision.pipeline.artifacts import verify_current, verify_image, verify_path
from provision.pipeline.image_archives import is_archive_name, open_archive
from provision.pipeline.pulling import verify_pulled
from provision.pipeline.registries import Consent, connect, examine
from provision.pipeline.workspace import load_settings
from provision.registry.names import parse_reference


@click.command("verify")
@click.argument("what", metavar="IMAGE|FILE.tar|STORE-ENTRY|DRIVER")
@options.insecure
@options.public_key
@options.root
@options.as_json
def command(
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
