"""``provision verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from provision.cli import options
from provision.cli.output import megabytes, print_fields, print_json
from provision.cli.progress import shown
from provision.cli.table import print_table
from provision.cli.target import job
from provision.manifest import Manifest
from provision.modules.verify import Report
from provision.pipeline.artifacts import verify_current, verify_image, verify_path
from provision.pipeline.registry import usable_image
from provision.pipeline.settings import load_settings


@click.command("verify")
@click.argument("what", metavar="IMAGE|STORE-ENTRY|DRIVER")
@options.allow_unsigned
@options.root
@options.as_json
def command(*, what: str, allow_unsigned: bool, root: Path, as_json: bool) -> None:
    """Compare an artifact with its manifest: every module and file, and the kernel they are for.

    The artifact is that of an image, a folder of a store, or the one of DRIVER that is in use.
    """
    report = _report(what, root, allow_unsigned=allow_unsigned)
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


def _report(what: str, root: Path, *, allow_unsigned: bool) -> Report:
    path = Path(what)
    if path.is_dir() or what.startswith(("/", "./", "../")):
        with shown(verbose=False) as progress:
            return verify_path(path, progress=progress)
    if ":" in what or "/" in what:
        with job(root) as work:
            image = usable_image(
                work.settings,
                work.engine,
                what,
                allow_unsigned=allow_unsigned,
                progress=work.progress,
            )
            return verify_image(work.settings, work.engine, image, progress=work.progress)
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
