"""``provision install`` and ``verify``: put an artifact to use, or compare it with its manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from provision.build.driver_request import BuildSettings, DriverRequest, RequestOptions
from provision.build.workspace import load_settings
from provision.cli import options
from provision.cli.display import print_table, shown
from provision.cli.job import Job, building, job, target, trusting
from provision.cli.options import megabytes, print_fields, print_json
from provision.documents import load_json
from provision.engine.docker_api import names_registry
from provision.errors import ProvisionError
from provision.kmod.module_signatures import is_signed_for_host
from provision.kmod.verify import Report
from provision.manifest import MANIFEST, Manifest
from provision.pin import Pin
from provision.progress import Note
from provision.registry.artifact_images import Trusted
from provision.registry.find import Lookup
from provision.registry.image_archives import is_archive_name, open_archive
from provision.registry.names import parse_reference
from provision.registry.registries import Consent, connect, examine
from provision.store.activate import plan
from provision.store.artifact_lookup import look_for, may_be_in_store, stored_for
from provision.store.artifacts import (
    activate_entry,
    install_image,
    plan_installation,
    verify_current,
    verify_entry,
    verify_image,
    verify_path,
)
from provision.store.layout import Layout
from provision.store.lazy_builds import build_image
from provision.store.managed_files import Change
from provision.store.pulling import check_age, store_pulled, verify_pulled


@dataclass(frozen=True, slots=True)
class _Result:
    """The changes that were made, or would be, and their artifact."""

    pin: Pin
    entry: Path
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class _Way:
    """The options of an installation."""

    again: bool
    replace: bool
    dry_run: bool


_way = options.option_group(
    "way",
    _Way,
    options.again,
    options.replace_files,
    options.dry_run,
)


@click.command("install")
@click.argument("what", metavar="IMAGE|FILE.tar|DRIVER")
@target
@building
@trusting
@_way
@options.as_json
def install_command(
    *,
    what: str,
    root: Path,
    catalogues: tuple[Path, ...],
    consent: Consent,
    as_json: bool,
    target: RequestOptions,
    how: BuildSettings,
    way: _Way,
) -> None:
    """Put an artifact into the host's store and switch to it.

    With DRIVER, the command installs the image that the registry of provision.toml has for this
    host. If there is none, it builds the driver as 'provision build' does. An artifact that is
    installed already stays.

    An IMAGE whose name begins with the host of a registry is pulled from there and must be signed.
    Every other name is an image of the engine. FILE.tar, or a path that begins with / or ./, is the
    archive of an image and must be signed too.
    """
    with job(root, catalogues) as work:
        if is_archive_name(what):
            archive = open_archive(work.settings, Path(what), progress=work.progress)
            result = _pulled(work, examine(work.settings, archive, {}, consent), consent, way)
        elif names_registry(what):
            client = connect(work.settings, parse_reference(what))
            result = _pulled(work, examine(work.settings, client, {}, consent), consent, way)
        elif ":" in what or "/" in what:
            result = _installed(work, what, way)
        else:
            result = _driver(work, target.of(what), how, consent, way)
    if as_json:
        print_json(_document(result, root=root, dry_run=way.dry_run))
    else:
        _print(result, dry_run=way.dry_run)


def _driver(
    work: Job, request: DriverRequest, how: BuildSettings, consent: Consent, way: _Way
) -> _Result:
    # These options ask for a certain build, which no registry has.
    is_build = how.rebuild or request.base or request.refresh or request.force
    if not is_build:
        try:
            trusted = look_for(work.settings, request, Lookup(consent, progress=work.progress))
        except ProvisionError as error:
            in_store = _in_store(work, request, way, error)
            if in_store is None:
                raise
            return in_store
        if trusted is not None:
            return _pulled(work, trusted, consent, way)
    resolved = work.resolve(request)
    layout = Layout(work.settings.root, resolved.pin.driver.name)
    entry = layout.entry(resolved.pin.short_digest)
    if entry.is_dir() and not (is_build or way.again):
        in_use = _stored(work, layout, entry, way)
        if in_use is not None:
            return in_use
    if way.dry_run:
        return _installed(work, resolved.pin.image, way)
    built = build_image(work.settings, work.engine, resolved, how, progress=work.progress)
    return _installed(work, built.image, way)


def _in_store(
    work: Job, request: DriverRequest, way: _Way, error: ProvisionError
) -> _Result | None:
    """Activate an entry of the store where no registry answers and nothing is built here."""
    if way.again or not may_be_in_store(work.settings, error):
        return None
    entry = stored_for(work.settings, request)
    if entry is None:
        return None
    work.progress(Note(f"{error.message} The store has the artifact: {entry}"))
    return _stored(work, Layout(work.settings.root, request.driver), entry, way)


def _stored(work: Job, layout: Layout, entry: Path, way: _Way) -> _Result | None:
    """Activate an entry of the store, without an engine; None: another key has signed it."""
    verify_entry(layout, entry, progress=work.progress)
    manifest = load_json(entry / MANIFEST, Manifest)
    if not is_signed_for_host(
        entry, manifest, work.settings.config.signing, root=work.settings.root
    ):
        return None
    if way.dry_run:
        return _Result(manifest.pin, entry, tuple(plan(layout, manifest, replace=way.replace)))
    done = activate_entry(layout, entry, replace=way.replace, progress=work.progress)
    return _Result(manifest.pin, entry, done.changes)


def _pulled(work: Job, trusted: Trusted, consent: Consent, way: _Way) -> _Result:
    """Install an image of a registry or an archive."""
    settings, pin = work.settings, trusted.image.pin
    layout = Layout(settings.root, pin.driver.name)
    if way.dry_run:
        check_age(settings, trusted, consent)
        entry = layout.entry(pin.short_digest)
        if not entry.is_dir():
            return _Result(pin, entry, (Change("unpack", entry),))
        manifest = load_json(entry / MANIFEST, Manifest)
        return _Result(pin, entry, tuple(plan(layout, manifest, replace=way.replace)))
    stored = store_pulled(
        settings, trusted, consent, must_replace=way.again, progress=work.progress
    ).stored
    done = activate_entry(layout, stored.entry, replace=way.replace, progress=work.progress)
    unpacked = (Change("unpack", stored.entry),) if stored.added else ()
    others = tuple(change for change in done.changes if change.kind != "unpack")
    return _Result(pin, stored.entry, (*unpacked, *others))


def _installed(work: Job, image: str, way: _Way) -> _Result:
    """Install an image of the engine."""
    if way.dry_run:
        done = plan_installation(work.settings, work.engine, image, replace=way.replace)
    else:
        done = install_image(
            work.settings,
            work.engine,
            image,
            again=way.again,
            replace=way.replace,
            progress=work.progress,
        )
    return _Result(done.manifest.pin, done.entry, done.changes)


def _document(result: _Result, *, root: Path, dry_run: bool) -> dict[str, Any]:
    pin = result.pin
    return {
        "driver": pin.driver.name,
        "version": pin.driver.version,
        "kernel": pin.kernel.release,
        "digest": pin.digest,
        "root": str(root),
        "entry": str(result.entry),
        "changed": bool(result.changes) and not dry_run,
        "changes": [
            {"kind": change.kind, "path": str(change.path), "what": str(change)}
            for change in result.changes
        ],
        "dry_run": dry_run,
    }


def _print(result: _Result, *, dry_run: bool) -> None:
    pin = result.pin
    what = f"{pin.driver.name} {pin.driver.version} for {pin.kernel.release}"
    if not result.changes:
        click.echo(f"{what} is installed already; nothing changed.")
        return
    if dry_run:
        for change in result.changes:
            click.echo(f"would {change}")
        return
    click.echo(f"{what} is installed in {result.entry}.")


@click.command("verify")
@click.argument("what", metavar="IMAGE|FILE.tar|STORE-ENTRY|DRIVER")
@options.insecure
@options.public_key
@options.root
@options.as_json
def verify_command(
    *, what: str, public_key: Path | None, insecure: bool, root: Path, as_json: bool
) -> None:
    """Compare an artifact with its manifest: every module and file, and the kernel.

    The artifact is that of an image, of a folder in a store, or the active one of DRIVER.
    """
    report = _report(what, root, Consent(public_key, insecure))
    manifest = report.require_whole(f"'{what}'")
    if as_json:
        print_json(_report_document(what, report, manifest))
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


def _report_document(what: str, report: Report, manifest: Manifest) -> dict[str, Any]:
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
